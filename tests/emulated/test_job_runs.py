"""`memtune run` with `device: emulated`: users' own commands from the first probe to the last attempt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from emulated_runs import example, memtune

from memtune.units import GIB, MIB

_DEEPSPEED = {"precision": ["bf16"], "checkpointing": ["none"], "backends": ["deepspeed"], "zeroStages": [3]}


def run(job: Path) -> tuple[dict[str, Any], str]:
    """The status in the end, of a job that must succeed, and what was said."""
    state = job.parent / "state"
    done = memtune("run", str(job), "--state", str(state))
    logs = "".join(f"\n{log}\n{log.read_text()[-2000:]}" for log in sorted(state.glob("runs/*/log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return json.loads((state / "job.json").read_text())["status"], done.stdout


def report_of(state: Path, run_name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state / "runs" / run_name / "report.json").read_text())
    return found


def test_a_script_with_the_trainer_runs_as_rank_0_of_16_under_zero_3(tmp_path: Path) -> None:
    training = {"globalBatchSize": 64, "sequenceLength": 128, "optimizer": "adamw", "attention": "sdpa"}
    tuning = {"space": _DEEPSPEED, "maxProbes": 1, "probeSteps": 2}
    job = example(tmp_path, "hf-trainer", {"nodes": 2, "gpusPerNode": 8}, training=training, tuning=tuning)
    status, said = run(job)
    report = report_of(tmp_path / "state", "hf-trainer-probe-1")
    assert (report["device"], report["world"], report["applied"]["zeroStage"]) == ("emulated", 16, 3)
    assert not {"stepSeconds", "tokensPerSecond"} & report.keys()
    (probe,) = status["probes"]
    peaks = probe["peakBytes"]
    # The context and NCCL's buffers among 16 ranks are kept free of the GPU.
    assert peaks["device"] - peaks["reserved"] > 1.5 * GIB
    assert peaks["total"] == int(79.1 * GIB)
    assert 0 < peaks["allocated"] <= peaks["active"] <= peaks["reserved"]
    assert status["phase"] == "Succeeded"
    assert "has run to its end on an emulated GPU, no model was trained" in said


def test_what_runs_out_of_memory_is_launched_again_on_a_plan_that_fits(tmp_path: Path) -> None:
    shrink = {"afterStep": 3, "by": "24%"}
    resources = {"gpuMemory": "900Mi", "shrink": shrink}
    space = {"precision": ["fp32"], "checkpointing": ["full"], "backends": ["ddp"]}
    tuning = {"space": space, "maxProbes": 1, "probeSteps": 2}
    trainer = ["python", "-m", "memtune_runner.trainer", "--steps", "6", "--save-every", "2"]
    containers = [{"name": "trainer", "image": "own:1", "command": trainer}]
    template = {"spec": {"containers": containers}}
    checkpoint = {"path": str(tmp_path / "never-there")}
    job = example(
        tmp_path, "quickstart", resources,
        tuning=tuning, integration="sdk", template=template, checkpoint=checkpoint,
    )  # fmt: skip
    status, said = run(job)
    first, second = status["attempts"]
    assert (first["verdict"], second["verdict"]) == ("device-oom", "succeeded")
    assert "CUDA out of memory. Tried to allocate" in first["message"]
    assert second["peakBytes"]["total"] == int(900 * MIB * 0.76)
    assert second["resumedSamples"] > 0
    assert not (tmp_path / "never-there").exists(), "nothing real may go on from what was never computed"
    assert (tmp_path / "state" / "emulated-checkpoints").exists()
    assert (
        "the emulated GPU has 0.7 GiB from here on"
        in (tmp_path / "state" / "runs" / "quickstart-train-1" / "log").read_text()
    )
    assert "attempt 2 runs emulated on" in said


def test_a_python_without_a_cuda_torch_is_one_sentence_before_anything_runs(tmp_path: Path) -> None:
    job = example(tmp_path, "hf-trainer", {})
    done = memtune("run", str(job), "--state", str(tmp_path / "state"), activated=False)
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert "was not built for CUDA" in sentence
    assert "activate its environment, or set spec.runner.python" in sentence
    assert not list((tmp_path / "state").glob("runs/*"))
