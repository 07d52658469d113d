"""`memtune plan --timeline`: one step of the chosen plan, from a trace of the job's model."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_jobs import job, refusal_message, write_job
from warm_environment import tracing_python

from memtune.wire.trace import loads
from memtune_cli.main import main

CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
          "num_attention_heads": 4, "vocab_size": 512}  # fmt: skip
LENGTH = 32
SENTENCE = (
    r"step\.html shows a step of bf16-\S+, replayed on a trace of LlamaForCausalLM; the allocator reserves [\d.]+ GiB "
    r"there, and CUDA's context and NCCL come on top"
)


def small_job(folder: Path, **changes: object) -> str:
    return write_job(folder, job(**{"model": {"hfConfig": CONFIG}, "training__sequenceLength": LENGTH, **changes}))


@pytest.fixture(autouse=True, scope="module")
def _warm() -> Iterator[None]:
    """Fork what traces a model."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "executable", tracing_python())
        yield


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("traced")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    file = folder / "small.trace.json"
    command = ["trace", str(folder / "config.json"), "--sequence-length", str(LENGTH), "--numerics", "half"]
    assert main([*command, "--output", str(file)]) == 0
    return str(file)


def timeline(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    page = folder / "step.html"
    assert main(["plan", small_job(folder), "--timeline", str(page), *more]) == 0
    assert page.read_text().count("<polygon") == 6
    assert "llama-7b-8gpu: LlamaForCausalLM, bf16-" in page.read_text()
    return " ".join(capsys.readouterr().out.split())


def test_the_chosen_plan_is_replayed_on_the_trace_that_is_given(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = timeline(tmp_path, capsys, "--trace", trace)
    assert re.search(SENTENCE, printed)
    chosen = re.search(r"Chosen: (\S+)", printed)
    assert chosen is not None
    assert f"shows a step of {chosen[1]}," in printed


def test_without_a_trace_the_jobs_config_is_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(SENTENCE, timeline(tmp_path, capsys))


def test_json_is_as_it_is_without_a_picture(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = small_job(tmp_path)
    assert main(["plan", described, "--format", "json"]) == 0
    plain = capsys.readouterr().out
    assert (
        main(["plan", described, "--format", "json", "--timeline", str(tmp_path / "step.svg"), "--trace", trace]) == 0
    )
    assert capsys.readouterr().out == plain
    assert (tmp_path / "step.svg").read_text().startswith("<?xml")


def test_the_page_describes_the_traced_model(trace: str) -> None:
    traced = loads(Path(trace).read_text())
    assert traced.blocks == 2
    assert traced.assumed == ("no row holds several sequences, which would need a mask in attention",)


def test_bad_input_is_reported(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = str(tmp_path / "step.html")
    longer = small_job(tmp_path, training__sequenceLength=64)
    message = refusal_message(capsys, "plan", longer, "--timeline", page, "--trace", trace)
    assert "was traced with 32 tokens a row, and the job has 64; trace again with --sequence-length 64" in message
    wider = small_job(tmp_path, model={"hfConfig": {**CONFIG, "hidden_size": 128}})
    message = refusal_message(capsys, "plan", wider, "--timeline", page, "--trace", trace)
    assert "parameters (LlamaForCausalLM), and the job describes" in message
    adapted = small_job(tmp_path, model={"hfConfig": CONFIG, "peft": {"method": "lora", "rank": 8}})
    message = refusal_message(capsys, "plan", adapted, "--timeline", page)
    assert "its model has an adapter; trace your code with memtune trace MODULE:FACTORY" in message
    odd = small_job(tmp_path, model={"hfConfig": {**CONFIG, "rms_norm_eps": "small"}})
    message = refusal_message(capsys, "plan", odd, "--timeline", page)
    assert message.startswith("memtune: spec.model.hfConfig: transformers makes no model of this config: ")
    assert str(tmp_path.parent) not in message
    assert "give --timeline FILE with it" in refusal_message(capsys, "plan", small_job(tmp_path), "--trace", trace)
    nowhere = str(tmp_path / "nowhere" / "step.html")
    message = refusal_message(capsys, "plan", small_job(tmp_path), "--timeline", nowhere, "--trace", trace)
    assert f"--timeline: {nowhere} cannot be written" in message
    assert not Path(page).exists()
