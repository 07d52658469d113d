"""The `memtune` command as a user sees it: pages, documents and exit codes."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_jobs import DENSE, ROOT, job, refusal_message, write_job
from warm_environment import tracing_python

from memtune_cli.main import main

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
ONE_OF_EACH = {
    "accelerate": "bf16-ddp-full-mb4x4-sdpa",
    "characters": "bf16-ddp-none-mb16x4-sdpa",
    "env": "bf16-ddp-none-mb4x4-sdpa",
    "hf-trainer": "bf16-ddp-full-mb4x4-sdpa",
    "lightning": "bf16-ddp-full-mb4x4-sdpa",
    "kueue-2x8": "bf16-fsdp-sel-mb1x8-sdpa",
    "llama-7b-8gpu": "bf16-z3-full-mb1x32",
    "llama-8b-deepspeed": "bf16-z3-sel-mb1x16-sdpa",
    "llama-8b-fsdp": "bf16-fsdp-sel-mb1x16-sdpa",
    "llama-70b-2x8": "bf16-z3-full-mb1x8-oopt",
    "lora-8b": "bf16-ddp-sel-mb1x32-sdpa",
    "own-batch": "bf16-ddp-none-mb4x8-sdpa",
    "own-model": "bf16-ddp-full-mb16x1-sdpa",
    "predict-in-ci": "bf16-z3-full-mb1x16",
    "qlora-24gb": "bf16-ddp-full-mb1x16-adamw8bit",
    "quickstart": "fp32-ddp-full-mb8x8-sdpa",
    "sdk": "bf16-fsdp-full-mb4x2-sdpa",
}
# The model of the scripts is so small that all of its plans fit.
TINY = ("accelerate", "characters", "env", "hf-trainer", "lightning", "own-batch", "own-model", "sdk")


@pytest.fixture
def _warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork what traces a model."""
    monkeypatch.setattr(sys, "executable", tracing_python())


@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_a_plan_that_fits(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(example)]) == 0
    page = capsys.readouterr().out
    for heading in ("Plans that fit", "Chosen: ", "GPU memory"):
        assert heading in page
    assert ("tokens/s" in page) == ("device: virtual" not in example.read_text())
    assert ("Plans that do not fit" in page) == ("the GPU has" in page) == (example.stem not in TINY)
    assert "\x1b" not in page
    assert max(map(len, page.splitlines())) <= 100


def test_a_size_missing_from_the_config_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "qwen2", "hidden_sze": 896, "num_hidden_layers": 24, "num_attention_heads": 32}
    file = write_job(tmp_path, job(model={"hfConfig": {**config, "intermediate_size": 4864, "vocab_size": 151936}}))
    main(["plan", file])
    page = " ".join(capsys.readouterr().out.split())
    assert "Note: spec.model.hfConfig does not say hidden_size (4096): taken from transformers' qwen2" in page
    assert "Note: spec.model.hfConfig.hidden_sze is unknown: did you mean hidden_size?" in page
    main(["plan", DENSE])
    assert "does not say" not in capsys.readouterr().out


def test_a_quantization_only_in_the_config_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {**job()["spec"]["model"]["hfConfig"], "quantization_config": {"load_in_4bit": True}}
    main(["plan", write_job(tmp_path, job(model={"hfConfig": config}))])
    page = " ".join(capsys.readouterr().out.split())
    assert "Note: spec.model.hfConfig.quantization_config is not read: the weights are predicted as not" in page
    main(["plan", write_job(tmp_path, job(model={"hfConfig": config, "peft": {"baseQuantization": "nf4"}}))])
    assert "quantization_config" not in capsys.readouterr().out


def test_expandable_segments_are_advised_for_batches_of_varying_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = {**job()["spec"]["training"], "varyingLengths": True}
    for segments, is_told in (([False], True), ([False, True], False)):
        tuning = {**job()["spec"].get("tuning", {}), "space": {"expandableSegments": segments}}
        assert main(["plan", write_job(tmp_path, job(training=training, tuning=tuning))]) == 0
        page = " ".join(capsys.readouterr().out.split())
        assert ("Note: batches vary in length" in page) == is_told
        assert "sequences of up to" in page


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"integration": "accelerate"}, True),
        ({"integration": "lightning"}, True),
        ({"integration": "sdk"}, False),
        ({"training__varyingLengths": False}, False),
        ({"tuning": {"space": {"expandableSegments": [True]}}}, False),
        ({"tuning": {"space": {"expandableSegments": [False, True]}}}, True),
        ({"resources__device": "virtual"}, False),
        ({"model": {"hfConfig": {"model_type": "vit"}}, "training__sequenceLength": 197}, False),
    ],
)
def test_leaving_out_varying_lengths_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], is_told: bool
) -> None:
    pod = {"spec": {"containers": [{"name": "trainer", "image": "i", "command": ["python", "train.py"]}]}}
    file = write_job(tmp_path, job(**{"template": pod, "integration": "hf-trainer", **changes}))
    assert main(["plan", file]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert ("if batches are padded to their longest sample, training.varyingLengths: true says so" in page) is is_told


def test_images_that_are_not_counted_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
    vision |= {"image_size": 896, "patch_size": 14, "vision_use_head": False}
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    gemma = {"model_type": "gemma3", "text_config": text, "vision_config": vision}
    assert main(["plan", write_job(tmp_path, job(model={"hfConfig": gemma}))]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "pictures are not: of each picture in a micro-batch the tower keeps up to 3.9 GiB more" in page


@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_can_be_estimated_and_explained(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ONE_OF_EACH[example.stem]
    assert main(["estimate", str(example), "--plan", plan]) == 0
    page = capsys.readouterr().out
    assert "It fits" in page
    assert "all of the GPU" in page
    assert main(["explain", str(example), "--plan", plan]) == 0
    formulas = capsys.readouterr().out
    assert "weights" in formulas
    assert "parameters" in formulas
    assert f"{plan}: each addend" in formulas


@pytest.mark.parametrize(
    ("example", "plan", "code", "told"),
    [
        ("llama-7b-8gpu", "bf16-z3-full-mb1x32", 0, None),
        ("llama-70b-2x8", "bf16-z3-full-mb1x32", 1, "512 sequences a step on 16 GPUs, and is shown as it is written; "
         "spec.training.globalBatchSize is 128, which bf16-z3-full-mb1x8 makes"),
        ("qlora-24gb", "bf16-ddp-full-mb1x32-adamw8bit", 0, "32 sequences a step on 1 GPU, and is shown as it is "
         "written; spec.training.globalBatchSize is 16, which bf16-ddp-full-mb1x16-adamw8bit makes"),
    ],
)  # fmt: skip
def test_a_plan_of_another_batch_is_shown_as_it_is_written(
    example: str, plan: str, code: int, told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    question = [str(ROOT / "examples" / f"{example}.yaml"), "--plan", plan, "--format", "json"]
    assert main(["estimate", *question]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["estimate"]["knobs"]["accumulation"] == 32
    assert document["notes"] == ([f"{plan} makes {told}"] if told else [])
    assert main(["explain", *question]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == document["notes"]


def test_parts_missing_from_a_plan_name_come_from_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [str(ROOT / "examples" / "qlora-24gb.yaml"), "--plan", "bf16-ddp-full-mb1x16", "--format", "json"]
    main(["estimate", *asked])
    document = json.loads(capsys.readouterr().out)
    assert document["estimate"]["plan"] == "bf16-ddp-full-mb1x16-adamw8bit"
    assert document["notes"] == []
    main(["explain", *asked])
    assert json.loads(capsys.readouterr().out)["plan"] == "bf16-ddp-full-mb1x16-adamw8bit"
    # What fits is what plan says of the same plan.
    main(["plan", *asked[:1], "--format", "json"])
    plans = {each["plan"]: each["deviceBytes"] for each in json.loads(capsys.readouterr().out)["fitting"]}
    assert document["estimate"]["bytes"]["device"] == plans["bf16-ddp-full-mb1x16-adamw8bit"]


def test_a_kernel_that_the_plan_leaves_out_decides_whether_it_can_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The job says sdpa; flash, a plan's default, has no kernel for fp32."""
    assert main(["estimate", str(ROOT / "examples" / "quickstart.yaml"), "--plan", "fp32-ddp-full-mb8x8"]) == 0
    assert "\nfp32-ddp-full-mb8x8-sdpa\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["estimate", "explain"])
def test_a_plan_that_the_job_does_not_allow_is_shown_with_a_note(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = write_job(tmp_path, job(tuning__space={"zeroStages": [2, 3], "checkpointing": ["full"]}))
    told = (
        "the operator would not choose this plan: sharding z1 (ZeRO stage 1) is not among tuning.space.zeroStages "
        "[2, 3]; checkpointing selective is not among tuning.space.checkpointing [full]"
    )
    asked = [command, narrow, "--plan", "bf16-z1-sel-mb1x32"]
    assert main(asked) == 0
    assert f"Note: {told}" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [told]


def test_beside_a_fixed_plan_any_other_is_one_that_the_operator_would_not_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = {"mode": "Fixed", "plan": "bf16-z3-full-mb4x8-exp", "space": {"offload": ["optimizer"]}}
    fixed = write_job(tmp_path, job(tuning=tuned))
    for plan, notes in (
        ("bf16-z3-full-mb4x8-exp", []),
        ("bf16-z3-full-mb4x8",
         ["the operator would not choose this plan: tuning.mode Fixed launches bf16-z3-full-mb4x8-exp"]),
    ):  # fmt: skip
        main(["estimate", fixed, "--plan", plan, "--format", "json"])
        assert json.loads(capsys.readouterr().out)["notes"] == notes


def test_explain_without_a_plan_takes_the_one_that_plan_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", DENSE, "--format", "json"])
    chosen = json.loads(capsys.readouterr().out)["chosen"]["plan"]
    assert main(["explain", DENSE, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == chosen


@pytest.mark.parametrize("command", [["plan"], ["estimate", "--plan", "bf16-z3-full-mb1x32"], ["explain"]])
def test_json_and_yaml_say_the_same(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([*command, DENSE, "--format", "json"])
    as_json = json.loads(capsys.readouterr().out)
    main([*command, DENSE, "--format", "yaml"])
    assert yaml.safe_load(capsys.readouterr().out) == as_json


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("command", [["plan"], ["estimate", "--plan", "bf16-z3-full-mb1x32"]])
def test_a_plot_is_a_picture(
    command: list[str], suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"memory.{suffix}"
    assert main([*command, DENSE, "--plot", str(path)]) == 0
    capsys.readouterr()
    assert path.read_bytes().startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        text = path.read_text()
        assert "optimizer states" in text
        assert "GPU 79.2 GiB" in text


def test_a_picture_names_no_plans_that_it_does_not_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # On 8 GiB nothing fits, and the picture ends at 1.25 times what the smallest plan takes.
    small = job(training__globalBatchSize=8, resources={"gpusPerNode": 8, "gpuMemory": "8Gi"})
    path = tmp_path / "memory.svg"
    assert main(["plan", write_job(tmp_path, small), "--plot", str(path)]) == 1
    text, page = path.read_text(), capsys.readouterr().out
    assert re.search(r"bf16-fsdp-full-mb1x1 +needs 19\.0 GiB", page)
    assert re.search(r"bf16-fsdp-sel-mb1x1 +needs 24\.8 GiB", page)
    assert ">bf16-fsdp-full<" in text
    assert ">bf16-fsdp-sel<" not in text


def test_a_picture_of_an_endless_batch_shows_a_few_micro_batches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The batch has thousands of divisors; trying every number up to the root of 10^16 would not end."""
    drawn: list[int] = []

    def draw(*drawing: Any) -> None:
        drawn.extend(candidate.plan.micro_batch for candidate in drawing[-1])

    monkeypatch.setattr("memtune_cli.views.plot.draw", draw)
    main(["estimate", DENSE, "--plan", "bf16-z3-full-mb99999999x99999999", "--plot", "memory.png"])
    capsys.readouterr()
    assert len(drawn) <= 17
    assert drawn == sorted(drawn)
    assert 99_999_999 in drawn


def test_the_page_says_what_would_fit_a_gpu_too_small_for_every_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = write_job(tmp_path, job(resources={"gpusPerNode": 8, "gpuMemory": "12Gi"}))
    assert main(["plan", small]) == 1
    page = capsys.readouterr().out
    for part in ("No plan fits. Smallest: ", "the GPU's memory ends here", "What would help", "use GPUs with at least"):
        assert part in page
    assert main(["plan", small, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["fitting"] == document["uncertain"] == []
    assert document["advice"]
    # Another GPU changes the verdict but not the job.
    assert main(["plan", small, "--gpu", "h100-80gb"]) == 0


@pytest.mark.parametrize("command", [["plan"], ["explain"], ["estimate", "--plan", "bf16-z3-full-mb1x32"]])
def test_a_guessed_gpu_is_reported(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = {"gpusPerNode": 8, "gpuMemory": "64Gi", "gpuProduct": "NVIDIA-H800"}
    file = write_job(tmp_path, job(resources=unknown))
    main([*command, file])
    page = " ".join(capsys.readouterr().out.split())
    assert "on 8 × GPU of 64.0 GiB (not known by name; speed as of the a100-80gb), 256" in page
    assert "Note: gpuProduct NVIDIA-H800 is unknown (did you mean" in page
    assert "reckoned as a GPU of 64.0 GiB, speed as of the a100-80gb" in page
    main([*command, file, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert document["gpu"]["guessed"]
    assert "NVIDIA-H800 is unknown" in document["notes"][0]
    # A GPU named on the command line is no guess.
    main([*command, file, "--gpu", "h100-80gb", "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["gpu"]["guessed"], document["notes"]) == (False, [])


def test_an_estimate_that_does_not_fit_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", DENSE, "--plan", "bf16-z1-none-mb32x1"]) == 1
    assert "It does not fit" in capsys.readouterr().out


def test_a_job_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(DENSE).read_bytes())))
    assert main(["plan", "-"]) == 0
    assert "llama-7b-8gpu" in capsys.readouterr().out


def test_top_limits_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", DENSE, "--top", "3"])
    assert "--top" in capsys.readouterr().out
    for bad in ("0", "-1"):
        with pytest.raises(SystemExit) as ended:
            main(["plan", DENSE, f"--top={bad}"])
        assert ended.value.code == 2
        assert "give at least 1" in capsys.readouterr().err


def test_help_documents_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["plan", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert "exit codes:" in capsys.readouterr().out


GENERATING = {
    "batchSize": 8,
    "generates": True,
    "generation": {"concurrentSequences": 32, "sequenceTokens": 1000},
}


def test_the_page_shows_the_memory_left_for_a_kv_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_job(tmp_path, job(training__evaluation=GENERATING))
    asked = "--plan", "bf16-z3-full-mb4x8"
    for command, *words in (("plan",), ("estimate", *asked), ("explain", *asked)):
        main([command, path, *words])
        page = capsys.readouterr().out
        # 32 sequences x 63 pages x 16 tokens x 512 KiB; of the last page of each, 8 tokens stay empty.
        assert "KV cache                 15.8 GiB  = 32 sequences x 63 pages of 16 tokens x 8 MiB" in page
        main([command, path, *words, "--format", "json"])
        generation = json.loads(capsys.readouterr().out)["generation"]
        assert generation["kvCacheBytes"] == 32 * 63 * 16 * 512 * 1024
        assert generation["wastedBytes"] == 32 * 8 * 512 * 1024
        left = generation["residentBytes"] + generation["kvCacheBytes"] + generation["leftBytes"]
        assert left == pytest.approx(79.2 * 1024**3, abs=2)


def test_an_encoder_decoder_caches_its_targets_and_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = {"sequenceLength": 512, "targetLength": 128, "globalBatchSize": 8}
    evaluation = {"batchSize": 8, "generates": True}
    asked = job(model={"hfConfig": {"model_type": "t5"}}, training=training, training__evaluation=evaluation)
    main(["estimate", write_job(tmp_path, asked), "--plan", "bf16-z3-full-mb1x1", "--format", "json"])
    # Six layers of 512 keys and values, 2 bytes each.
    cached = 8 * (128 + 512) * 6 * 2 * 512 * 2
    assert json.loads(capsys.readouterr().out)["generation"]["kvCacheBytes"] == cached


def test_without_generation_there_is_no_kv_cache_section(capsys: pytest.CaptureFixture[str]) -> None:
    main(["estimate", DENSE, "--plan", "bf16-z3-full-mb4x8"])
    assert "KV cache" not in capsys.readouterr().out


def test_a_model_that_cannot_generate_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bert = job(model__hfConfig={"model_type": "bert"}, training__evaluation=GENERATING)
    assert "spec.training.evaluation.generates: a model of kind encoder" in refusal_message(
        capsys, "plan", write_job(tmp_path, bert)
    )


def test_mode_fixed_shows_the_plan_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = job(tuning__mode="Fixed", tuning__plan="bf16-z3-full-mb4x8")
    assert main(["plan", write_job(tmp_path, fixed), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [plan["plan"] for plan in document["fitting"]] == ["bf16-z3-full-mb4x8"]
    assert document["dropped"] == document["uncertain"] == []


def asking_for_offload(**resources: object) -> dict[str, object]:
    """Return the dense example with optimizer states on the host, 130 GiB a pod, in a container of these resources."""
    space = {"zeroStages": [2], "checkpointing": ["full"], "backends": ["deepspeed"], "offload": ["none", "optimizer"]}
    container = {"name": "trainer", "image": "mine:1", "command": ["python", "train.py"], "resources": resources}
    return job(tuning__space=space, template={"spec": {"containers": [container]}})


def test_plans_that_offload_more_than_the_templates_limit_are_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = write_job(tmp_path, asking_for_offload(limits={"memory": "64Gi"}))
    assert main(["plan", tight, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    dropped = {each["plan"]: each["reason"] for each in document["dropped"]}
    needs = "needs 130.2 GiB of host memory for what it offloads; limits.memory of the template is 64.0 GiB"
    assert dropped["bf16-z2-full-mb1x32-oopt"] == needs
    assert not [each for each in document["fitting"] if each["plan"].endswith("-oopt")]
    main(["plan", tight])
    assert needs in " ".join(capsys.readouterr().out.split())
    assert main(["plan", write_job(tmp_path, asking_for_offload()), "--format", "json"]) == 0
    assert [each for each in json.loads(capsys.readouterr().out)["fitting"] if each["plan"].endswith("-oopt")]


def test_the_estimate_of_a_plan_whose_host_is_too_small_says_that_it_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tight = write_job(tmp_path, asking_for_offload(limits={"memory": "64Gi"}))
    asked = ["estimate", tight, "--plan", "bf16-z2-full-mb1x32-oopt"]
    assert main(asked) == 1
    page = capsys.readouterr().out
    assert "It does not fit: it needs 130.2 GiB of host memory for what it offloads" in page
    assert max(map(len, page.splitlines())) <= 100
    assert main([*asked, "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["estimate"]["fits"] is False
