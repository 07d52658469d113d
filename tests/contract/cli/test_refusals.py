"""Bad input of the `memtune` command: one clear message, exit code 2, no traceback."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_jobs import DENSE, job, refusal_message, write_job

from memtune_cli.input.job_documents import job_document
from memtune_cli.main import main


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"training__globalBatchSize": 100}, ["spec.training.globalBatchSize", "100 cannot be divided among 8 GPUs"]),
        ({"training__globalBatch": 256}, ["spec.training.globalBatch", "globalBatchSize"]),
        ({"model": {"hfConfig": {"model_type": "mamba9"}}}, ["spec.model.hfConfig", "mamba9"]),
        ({"resources": {"gpusPerNode": 8}}, ["the GPU is unknown", "--gpu h100-80gb"]),
        (
            {"resources": {"gpusPerNode": 8, "gpuProduct": "NVIDIA-GB200"}},
            [
                "gpuProduct: NVIDIA-GB200 is unknown (did you mean b200-180gb, b300-270gb or",
                "give gpuMemory",
                "--gpu h100-80gb",
            ],
        ),
        ({"model__hfConfig__hidden_size": 4 * 10**24}, ["spec.model.hfConfig.hidden_size", "more than any model has"]),
        (
            {"model__peft": {"method": "lora", "rank": 16, "targets": ["query"]}},
            ["spec.model.peft.targets: adapter target 'query' names no linear module of", "q_proj"],
        ),
        (
            {"model": {"hfConfig": {"model_type": "gpt2"}}},
            ["spec.training.sequenceLength: 4,096 is more than the 1,024 positions that gpt2 has embeddings for"],
        ),
        ({"tuning__space__precision": ["bf17"]}, ["spec.tuning.space.precision", "bf17"]),
        (
            {"template": {"spec": {"containers": [{"name": "trainer", "args": ["--resume=$(MEMTUNE_RESUME)"]}]}}},
            ["spec.containers[trainer].args: $(MEMTUNE_RESUME) is not", "did you mean $(MEMTUNE_RESUME_FROM)?"],
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_path(
    changes: dict[str, Any], messages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_job(tmp_path, job(**changes))
    error = refusal_message(capsys, "plan", file)
    assert all(message in error for message in [file, *messages])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "this is not YAML"),
        ("a: b: c", "job.yaml:1:5: this is not YAML"),
        ("spec:\n  a: 1\n  a: 2\n", "job.yaml:3:3: this is not YAML that a job can be read from: a is given twice"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("a: &a [*a]", "its aliases stand for more than 100,000 values, or for themselves"),
        ('{"apiVersion": "\\ud83d"}', "found invalid Unicode character escape code"),
        ("spec: {3: 4}", "3 is a number, and a field's name is text"),
        ("", "the file holds nothing"),
        ("a: 1\n---\nb: 2\n", "the file holds 2 documents, and none of them are jobs"),
        ("kind: MemoryTunedJob\n---\nkind: MemoryTunedJob\n", "the file holds 2 documents, and 2 of them are jobs"),
        ("[1, 2]", "this is a list, not a MemoryTunedJob"),
        ("just words", "this is text, not a MemoryTunedJob"),
    ],
)
def test_a_file_that_is_no_job_is_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal_message(capsys, "plan", write_job(tmp_path, text))


def test_exponential_yaml_aliases_are_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters = "abcdefghijklmnop"
    lines = [f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]" for before, after in itertools.pairwise(letters)]
    assert "its aliases stand for more" in refusal_message(
        capsys, "plan", write_job(tmp_path, "\n".join(["a: &a [x]", *lines]))
    )


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, '{"a": ' * 600 + "1" + "}" * 600])
def test_endless_nesting_is_refused_with_its_place(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal_message(capsys, "plan", write_job(tmp_path, text))
    assert re.search(r"job\.yaml:1:\d+: this is not YAML that a job can be read from: it is nested deeper than", error)


@pytest.mark.parametrize("label", ["\U0001f600", "a very long label " * 100])
def test_json_that_is_no_valid_yaml_is_read(label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # json writes the first as two escapes, which YAML accepts only one by one; YAML keys end at 1,024 characters.
    config = {**job()["spec"]["model"]["hfConfig"], "label2id": {label: 0}}
    assert main(["plan", write_job(tmp_path, json.dumps(job(model={"hfConfig": config})))]) == 0
    capsys.readouterr()


def test_a_field_that_json_gives_twice_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(job()).replace('"globalBatchSize"', '"globalBatchSize": 8, "globalBatchSize"')
    assert "globalBatchSize is given twice" in refusal_message(capsys, "plan", write_job(tmp_path, text))


def test_an_anchor_that_is_used_twice_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(DENSE).read_text().replace("precision: [bf16]", "precision: &p [bf16]")
    assert main(["plan", write_job(tmp_path, text.replace("[deepspeed, fsdp]", "&b [deepspeed, fsdp]"))]) == 0
    capsys.readouterr()


def test_a_models_config_is_refused_with_the_job_to_put_it_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.dumps(job()["spec"]["model"]["hfConfig"], indent=2)
    error = refusal_message(capsys, "plan", write_job(tmp_path, config))
    assert "this is a model's config.json, not a MemoryTunedJob" in error
    around = error.partition("in place of CONFIG: ")[2]
    assert main(["plan", write_job(tmp_path, around.replace("CONFIG", config))]) == 0
    assert "my-job on 8 × h100-80gb" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("written_as", "value"), [("1e-06", 1e-06), ("1E5", 1e5), ("-2.5e+3", -2500.0), ("'1e-06'", "1e-06"), ("e5", "e5")]
)
def test_numbers_are_read_as_json_writes_them(written_as: str, value: object) -> None:
    assert job_document(f"a: {written_as}", "job.yaml") == {"a": value}
    if isinstance(value, float):
        assert job_document(f'{{"a":{written_as}}}', "job.json") == {"a": value}


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no such file" in refusal_message(capsys, "plan", str(tmp_path / "none.yaml"))
    assert "the file of the job is the empty text" in refusal_message(capsys, "plan", "")
    assert "this is a directory" in refusal_message(capsys, "plan", str(tmp_path))
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    assert "not UTF-8 text" in refusal_message(capsys, "explain", str(binary))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("bf16-z9-full-mb1x32", "'z9' is not one of"),
        ("fp8-z3-full-mb1x32", "a100-80gb has no fp8"),
    ],
)
def test_a_plan_that_the_job_cannot_run_is_refused(plan: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal_message(capsys, "estimate", DENSE, "--plan", plan)


def test_a_fixed_plan_of_another_batch_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = write_job(tmp_path, job(tuning={"mode": "Fixed", "plan": "bf16-z3-full-mb1x2"}))
    assert "makes 16 sequences a step on 8 GPUs" in refusal_message(capsys, "plan", fixed)


def test_other_bad_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = refusal_message(capsys, "plan", DENSE, "--gpu", "h100")
    assert "--gpu: h100 is unknown (did you mean h100-80gb, h100-nvl-94gb or h100-pcie-80gb?)" in unknown
    assert "--gpu: mi300x is unknown (known are b300-270gb, " in refusal_message(
        capsys, "plan", DENSE, "--gpu", "mi300x"
    )
    nowhere = str(tmp_path / "none" / "memory.png")
    assert "cannot be written" in refusal_message(capsys, "plan", DENSE, "--plot", nowhere)
    assert "allows no plan: v100-32gb has no bf16" in refusal_message(capsys, "plan", DENSE, "--gpu", "v100-32gb")
    endless = refusal_message(capsys, "estimate", DENSE, "--plan", f"bf16-z3-full-mb{'9' * 400}x1")
    assert "is not a micro-batch and accumulation like mb4x8, each of 8 digits at most" in endless
    with pytest.raises(SystemExit) as ended:
        main(["plan", DENSE, "--plot", "memory.pdf"])
    assert ended.value.code == 2
    assert "end it with .png or .svg" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["plan"], ["estimate", "--plan", "bf16-z3-full-mb1x32"]])
def test_a_picture_without_matplotlib_says_what_to_install(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = refusal_message(capsys, *command, DENSE, "--plot", "memory.png")
    assert "--plot: matplotlib is not installed; pip install '.[plot]' in MemTune's checkout" in error


def test_an_option_of_another_command_is_refused_with_the_usage_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--plan", "bf16-ddp-none-mb8x1-sdpa", DENSE])
    error = capsys.readouterr().err
    assert error.startswith("usage: memtune plan ")
    assert error.endswith("memtune plan: error: unrecognized arguments: --plan\n")
