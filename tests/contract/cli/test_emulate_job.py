"""`memtune emulate JOB.yaml`: page and document of the runs against golden texts, and bad input.

After an intended change, rewrite the golden files by running this file with ``MEMTUNE_WRITE_GOLDEN=1``.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from memtune.api import load_job
from memtune.wire.report import LOG_MARK
from memtune_cli.arguments import build_parser
from memtune_cli.commands.emulate_job import _case, _document
from memtune_cli.input.emulated_forks import started
from memtune_cli.input.emulated_job import EmulationRefusedError, _run, prepare
from memtune_cli.main import main
from memtune_cli.views import json_output
from memtune_cli.views.emulate_page import page_of_job
from memtune_cli.views.screen import Screen

GOLDEN = Path(__file__).parents[2] / "golden"
_EXAMPLES = Path(__file__).parents[3] / "examples"
JOB = str(_EXAMPLES / "llama-8b-deepspeed.yaml")
_GIB = 1 << 30
_SITE = {"line": "/home/me/train.py:21", "within": "/lib/site-packages/transformers/llama.py:164 forward"}


def result(plan: str, **changes: Any) -> dict[str, Any]:
    """Return the result of a successful run."""
    phases = {"init": (10, 10, 11), "forward": (61, 62, 66), "backward": (63, 64, 66), "optimizer-step": (30, 30, 66)}
    history = {
        "isWhole": True, "phase": "backward", "tensorBytes": 63 * _GIB, "step": None,
        "largest": [
            {**_SITE, "phase": "forward", "tensors": 96, "bytes": 24 * _GIB},
            {"line": "no line of Python", "within": "", "phase": "backward", "tensors": 3, "bytes": 600 << 20},
        ],
    }  # fmt: skip
    variables = {
        "plan": plan, "outcome": "completed", "message": "", "exitCode": 0, "seconds": 12.3, "steps": 3,
        "peakBytes": {"allocated": 63 * _GIB, "active": 64 * _GIB, "reserved": 66 * _GIB, "device": 68 * _GIB},
        "allocatorRetries": 0,
        "phaseBytes": {
            name: dict(zip(("allocated", "active", "reserved"), (size * _GIB for size in sizes), strict=True))
            for name, sizes in phases.items()
        },
        "peakBytesByGpu": {"0": {"allocated": 63 * _GIB, "active": 64 * _GIB, "reserved": 66 * _GIB}},
        "hostPeakBytes": 2 * _GIB, "pinnedPeakBytes": 1 << 20, "kernelLaunches": 7000,
        "matrixProducts": {"calls": 2400, "flops": 2_463_900 * 10**9},
        "collectives": [{"name": "all-gather", "calls": 198, "bytes": 90 * _GIB}],
        "stepSeconds": {
            "products": 2.5, "attention": 0.4, "kernels": 0.75, "host": 0.0,
            "collectives": 0.35, "idle": 0.0, "all": 4.0,
        },
        "otherProcesses": [], "stubs": [], "compilations": 0,
        "values": [{"file": "/home/me/train.py", "line": 30, "value": "made up", "sizes": False, "times": 3}],
        "torch": "2.13.0+cu130", "history": history,
    }  # fmt: skip
    return {**variables, **changes}


def nothing(plan: str, **changes: Any) -> dict[str, Any]:
    """Return the result of a run that never used the GPU."""
    kept = {name: value for name, value in result(plan).items() if name in ("plan", "seconds", "allocatorRetries")}
    return {**dict.fromkeys(result(plan)), **kept, "steps": 0, **changes}


def told() -> tuple[Any, dict[str, Any]]:
    """Return the case and document of four runs with different outcomes."""
    empty = {"isWhole": True, "phase": "", "tensorBytes": 0, "largest": [], "step": None}
    oom = "OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB."
    beside = {"gpu": 0, "processes": 2, "peakBytes": 3 * _GIB, "togetherBytes": 68 * _GIB, "upperBytes": 69 * _GIB}
    case = _case(Namespace(words=[JOB], gpu=None))
    results = [
        result("bf16-z3-full-mb4x4-sdpa", otherProcesses=[beside]),
        result("bf16-z3-full-mb8x2-sdpa", outcome="outOfMemory", message=oom, exitCode=85, steps=0, history=empty),
        nothing("bf16-z3-none-mb2x8-sdpa", outcome="timeLimit", message="", exitCode=None),
        nothing("bf16-z3-none-mb1x16-sdpa", outcome="failed", message="FileNotFoundError: train.jsonl", exitCode=1),
    ]
    return case, _document(case, results)


def golden() -> dict[str, str]:
    """Return the expected text of each golden file."""
    case, found = told()
    shown = "\n".join([*page_of_job(Screen(110, colours=False, unicode=True), case, found), ""])
    return {"emulate-job.txt": shown, "emulate-job.json": json_output.dump(found, "json") + "\n"}


def test_the_page_and_the_document_are_the_golden_ones() -> None:
    for name, text in golden().items():
        assert text == (GOLDEN / name).read_text()


def test_yaml_holds_the_same_as_json() -> None:
    _, found = told()
    assert yaml.safe_load(json_output.dump(found, "yaml")) == json.loads(json_output.dump(found, "json"))


@pytest.mark.parametrize(
    ("plan", "sizes", "reason"),
    [
        ("bf16-z3-full-mb4x4-sdpa", True, "sizes of tensors came from values that no kernel has computed"),
        ("bf16-z3-full-mb4x4-oopt-sdpa", False, "its optimizer runs on the host"),
    ],
)
def test_the_page_says_why_the_operations_tell_no_time(plan: str, sizes: bool, reason: str) -> None:
    case = _case(Namespace(words=[JOB], gpu=None))
    values = [{"file": "train.py", "line": 30, "value": "made up", "sizes": sizes, "times": 3}]
    document = _document(case, [result(plan, values=values, stepSeconds=None)])
    assert document["plans"][0]["stepSeconds"] is None
    shown = "\n".join(page_of_job(Screen(110, colours=False, unicode=True), case, document))
    assert f"  Its operations tell no time of a step: {reason}.\n" in shown
    assert "By its operations" not in shown


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--plan", "bf16-fsdp-none-mb4x4", JOB], 10, "does not allow bf16-fsdp-none-mb4x4-sdpa"),
        (["--plan", "bf16-z3-none-mb4x8", JOB], 10, "makes 256 sequences a step on 8 GPUs"),
        (["--plan", "fast", JOB], 2, "--plan: "),
        (["--ranks", "8", JOB], 2, "--ranks: a job says itself"),
        (["--gpus", "8", JOB], 2, "--gpus: a job says itself"),
        ([str(_EXAMPLES / "env.yaml")], 5, "the GPU to emulate is not named; set gpuProduct, or give --gpu"),
        (["nowhere.yaml"], 2, "nowhere.yaml: there is no such file"),
        (["--top", "3", "--", "python", "train.py"], 2, "--top is for a job"),
        (["--timeline", "t.html", "--", "python", "train.py"], 2, "--timeline is for a job"),
    ],
)
def test_bad_input_is_one_sentence_with_its_code(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", *words]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert sentence in said.err


def test_a_plan_and_the_first_of_all_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["emulate", "--plan", "bf16-z3-none-mb4x4", "--top", "2", JOB])
    assert "not allowed with" in capsys.readouterr().err


def test_a_job_for_another_device_is_predicted_as_for_a_gpu() -> None:
    case = _case(Namespace(words=[str(_EXAMPLES / "env.yaml")], gpu="h100-80gb"))
    assert case.job.spec.resources.is_emulated
    assert case.job.spec.resources.gpu_memory is None
    assert not case.workload.virtual


if __name__ == "__main__" and os.environ.get("MEMTUNE_WRITE_GOLDEN"):
    for name, text in golden().items():
        (GOLDEN / name).write_text(text)


def test_a_command_that_cannot_be_started_is_refused_with_its_reason(tmp_path: Path) -> None:
    manifest = yaml.safe_load(Path(JOB).read_text())
    manifest["spec"]["resources"]["device"] = "emulated"
    manifest["spec"]["template"]["spec"]["containers"][0]["workingDir"] = str(tmp_path / "nowhere")
    with pytest.raises(EmulationRefusedError, match=r"could not be started: .*nowhere"):
        prepare(load_job(manifest), tmp_path)


@pytest.mark.parametrize(("ends", "seconds", "code"), [("sys.exit(3)", 20, 3), ("time.sleep(60)", 2, None)])
def test_the_output_of_a_command_is_passed_on_without_the_report(
    ends: str, seconds: int, code: int | None, tmp_path: Path
) -> None:
    report = f"{LOG_MARK}{{}}"
    script = (
        f"import sys, time; print('step 1', flush=True); print({report!r}, flush=True); print('end', file=sys.stderr); "
    )
    process = started([sys.executable, "-c", script + ends], dict(os.environ), tmp_path)
    said: list[str] = []
    assert _run(process, seconds, said.append) == code
    assert said == ["step 1\n", "end\n"]
