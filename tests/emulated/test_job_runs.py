"""`memtune run` with `device: emulated`: users' own commands from the first probe to the last attempt."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from emulated_runs import example, memtune
from warm_environment import warm_emulated, warm_environment

from memtune.units import GIB, MIB

_ALONE = "fp32-ddp-none-mb4x4-sdpa"
_DEEPSPEED = {"precision": ["bf16"], "checkpointing": ["none"], "backends": ["deepspeed"], "zeroStages": [3]}
_TORCHRUN = ("python", "-m", "torch.distributed.run")
_LOOP = {"precision": ["bf16"], "checkpointing": ["none"], "backends": ["ddp"], "microBatch": [4, 8]}


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


def test_a_rank_that_stands_for_all_reports_a_checkpoint_without_waiting(tmp_path: Path) -> None:
    tuning = {"mode": "Fixed", "plan": "bf16-ddp-none-mb4x2-sdpa-exp"}
    status, _ = run(example(tmp_path, "env", {"gpusPerNode": 2}, tuning=tuning))
    assert report_of(tmp_path / "state", "env-train-1")["applied"]["expandableSegments"] is True
    (attempt,) = status["attempts"]
    assert (attempt["verdict"], attempt["checkpointSamples"]) == ("succeeded", 192)


def test_a_shell_that_starts_the_script_runs_on_the_emulated_gpu_of_its_python(tmp_path: Path) -> None:
    text = "echo begins && exec python -m torch.distributed.run examples/scripts/checkpointed_loop.py"
    container = {"name": "trainer", "image": "own:1", "command": ["sh", "-ec", text]}
    tuning = {"mode": "Fixed", "plan": "bf16-ddp-none-mb4x2-sdpa"}
    template = {"spec": {"containers": [container]}}
    status, _ = run(example(tmp_path, "env", {"gpusPerNode": 2}, tuning=tuning, template=template))
    (attempt,) = status["attempts"]
    assert (attempt["verdict"], attempt["checkpointSamples"]) == ("succeeded", 192)
    assert report_of(tmp_path / "state", "env-train-1")["world"] == 2


@pytest.mark.parametrize(("name", "script"), [("hf-trainer", "hf_trainer.py"), ("accelerate", "accelerate_loop.py")])
def test_on_one_gpu_nothing_wraps_the_model_in_ddp(name: str, script: str, tmp_path: Path) -> None:
    # It would hold a second copy of the gradients. A launcher asks accelerate for it.
    container = {"name": "trainer", "image": "own:1", "command": ["torchrun", f"examples/scripts/{script}"]}
    template = {"spec": {"containers": [container]}}
    tuning = {"mode": "Fixed", "plan": _ALONE}
    status, _ = run(example(tmp_path, name, {"gpusPerNode": 1}, tuning=tuning, template=template))
    report = report_of(tmp_path / "state", f"{name}-train-1")
    assert (report["applied"]["backend"], status["attempts"][-1]["verdict"]) == ("none", "succeeded")


def test_an_out_of_memory_relaunches_a_plan_that_fits(tmp_path: Path) -> None:
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
    assert not (tmp_path / "never-there").exists(), "nothing real may resume from what was never computed"
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
    assert "activate its environment, or name its Python in the command" in sentence
    assert not list((tmp_path / "state").glob("runs/*"))


def test_a_job_is_emulated_under_each_of_the_plans_that_rank_first(tmp_path: Path) -> None:
    snapshot, picture = tmp_path / "s.pickle", tmp_path / "step.html"
    job = example(tmp_path, "env", {})
    done = memtune(
        "emulate", str(job), "--top", "2", "--format", "json", "--snapshot", str(snapshot), "--timeline", str(picture)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert (told["job"], told["ranks"], told["gpu"]["name"]) == ("env", 1, "h100-80gb")
    first, second = told["plans"]
    assert first["plan"] != second["plan"]
    peaks, phases = first["peakBytes"], first["phaseBytes"]
    assert peaks["device"] == peaks["reserved"] + told["outsideBytes"]["context"]
    for metric in ("allocated", "active", "reserved"):
        assert max(phase[metric] for phase in phases.values()) == peaks[metric]
    assert {"init", "forward", "backward", "optimizer-step"} <= phases.keys()
    assert set(first["predictedBytes"]) == set(peaks)
    for each in (first, second):
        parts = {name: seconds for name, seconds in each["stepSeconds"].items() if name != "all"}
        assert sum(parts.values()) == pytest.approx(each["stepSeconds"]["all"])
        assert parts["products"] > 0 == parts["collectives"]
    largest = first["largest"]
    # Blocks are rounded up to 512 bytes each, and what is asked for is not.
    assert 0.9 * peaks["active"] < largest["tensorBytes"] <= peaks["active"]
    lines = {each["line"].rsplit("/", 1)[-1].split(":")[0] for each in largest["largest"]}
    assert "checkpointed_loop.py" in lines
    assert pickle.loads(snapshot.read_bytes())["segments"]
    assert "optimizer-step" in picture.read_text()


def test_a_deepspeed_job_is_emulated_under_its_plan_as_rank_0_of_8(tmp_path: Path) -> None:
    training = {"globalBatchSize": 64, "sequenceLength": 128, "optimizer": "adamw", "attention": "sdpa"}
    job = example(
        tmp_path, "hf-trainer", {"gpusPerNode": 8}, training=training, tuning={"space": _DEEPSPEED, "probeSteps": 1}
    )
    done = memtune("emulate", str(job), "--plan", "bf16-z3-none-mb8x1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "emulated, rank 0 of 8" in done.stdout
    assert "_setup_for_real_optimizer" in done.stdout, "DeepSpeed's own line, asked for by the user's"
    assert "hf_trainer.py:" in done.stdout


def test_each_ending_of_an_emulated_job_has_its_own_code(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    template = {"spec": {"containers": [{"name": "trainer", "image": "own:1", "command": ["python", str(script)]}]}}
    job = str(example(tmp_path, "env", {"gpuMemory": "1Gi"}, template=template))
    script.write_text("import time, torch\ntime.sleep(1000)\n")
    done = memtune("emulate", job, "--time-limit", "15")
    assert done.returncode == 7
    assert "when its time was up; give a larger --time-limit" in done.stdout
    script.write_text("import torch\ntorch.empty(1 << 30, device='cuda')\n")
    done = memtune("emulate", job)
    assert done.returncode == 6
    assert "out of memory after 0 steps" in done.stdout
    assert "CUDA out of memory. Tried to allocate 4.00 GiB." in done.stdout
    # A process that the script starts has the values that the script has, and memory of the same GPU.
    child = "import torch; assert int(torch.arange(64, device='cuda').sum()) == 2016"
    words = f"[sys.executable, '-c', {child!r}]"
    script.write_text(
        "import subprocess, sys, torch\nkept = torch.ones(3, device='cuda')\n"
        f"subprocess.run({words}, check=True)\nraise RuntimeError('no data')\n"
    )
    done = memtune("emulate", job)
    assert done.returncode == 1
    assert "RuntimeError: no data" in done.stdout
    assert "Processes that it started (1) took up to 502 MiB of GPU 0" in done.stdout
    assert "device     1,004 MiB" in done.stdout
    done = memtune("emulate", job, activated=False)
    assert done.returncode == 3
    (sentence,) = done.stderr.splitlines()
    assert "was not built for CUDA" in sentence


def both_pythons(directory: Path) -> Path:
    """A `python` of two builds of torch: the CUDA build on an emulated GPU, ours on the virtual one."""
    program = directory / "bin" / "python"
    program.parent.mkdir()
    own = warm_environment() / "bin" / "python"
    program.write_text(f'#!/bin/sh\n[ "$MEMTUNE_DEVICE" = emulated ] && exec {warm_emulated()} "$@"\nexec {own} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("emulation", "probes"), [("Auto", 1), ("Only", 0)])
def test_plans_are_emulated_before_they_are_probed(tmp_path: Path, emulation: str, probes: int) -> None:
    tuning = {"space": _LOOP, "maxProbes": 1, "probeSteps": 2, "emulation": emulation}
    trainer = {"name": "trainer", "image": "own:1", "command": [*_TORCHRUN, "examples/scripts/checkpointed_loop.py"]}
    template = {"spec": {"containers": [trainer]}}
    resources = {"device": "virtual", "gpuMemory": "8Gi"}
    job = example(tmp_path, "env", resources, tuning=tuning, template=template)
    both_pythons(tmp_path)
    state = tmp_path / "state"
    done = memtune("run", str(job), "--state", str(state), programs=tmp_path / "bin")
    logs = "".join(f"\n{log}\n{log.read_text()[-2000:]}" for log in sorted(state.glob("runs/*/log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    status = json.loads((state / "job.json").read_text())["status"]
    assert {each["verdict"] for each in status["emulations"]} == {"succeeded"}, status["emulations"]
    assert len(status["probes"]) == probes
    report = report_of(state, "env-emulate-1")
    assert report["device"] == "emulated"
    # By its operations: no clock says how long a step takes.
    assert status["emulations"][0]["stepSeconds"] == pytest.approx(report["stepSeconds"], rel=1e-3)
    assert 0 < report["stepSeconds"] < 1
    assert "tokensPerSecond" not in report
    assert "s a step by its operations" in done.stdout
    (attempt,) = status["attempts"]
    assert attempt["plan"] in {each["plan"] for each in status["emulations"]}
    assert not attempt["emulated"]
    assert "emulated probe 1" in done.stdout


def test_a_job_whose_python_has_no_cuda_torch_goes_on_without_emulated_probes(tmp_path: Path) -> None:
    tuning = {"space": _LOOP, "maxProbes": 1, "probeSteps": 2, "emulation": "Auto"}
    job = example(tmp_path, "env", {"device": "virtual", "gpuMemory": "8Gi"}, tuning=tuning)
    programs = warm_environment() / "bin"
    done = memtune("run", str(job), "--state", str(tmp_path / "state"), programs=programs)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = [line for line in done.stdout.splitlines() if "goes on without emulated probes" in line]
    assert "was not built for CUDA" in told
