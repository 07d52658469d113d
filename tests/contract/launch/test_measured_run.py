"""The whole runner: a real script with real hooks on virtual GPUs, and the launcher's report."""

from __future__ import annotations

from pathlib import Path

from launches import Place
from warm_environment import warm_environment

from memtune.wire.report import Device, Ending
from memtune_runner.install import install

EXAMPLES = Path(__file__).parents[3] / "examples" / "scripts"


def test_a_script_without_torch_does_not_wait_for_its_import(tmp_path: Path) -> None:
    install(tmp_path / "runner")
    launch = Place(tmp_path / "runner", tmp_path).run("python", "-c", "import sys; print('torch' in sys.modules)")
    assert launch.stdout.splitlines()[0] == "[rank 0] False", launch.stderr


def test_a_probe_reports_its_measurement_and_the_applied_plan(tmp_path: Path) -> None:
    install(tmp_path / "runner")
    place = Place(tmp_path / "runner", tmp_path, str(warm_environment() / "bin" / "python"))
    variables = {
        "MEMTUNE_RUN_KIND": "probe",
        "MEMTUNE_PROBE_STEPS": "2",
        "MEMTUNE_ATTEMPT": "",
        "MEMTUNE_PLAN": "fp32-ddp-none-mb2x1",
        "MEMTUNE_MICRO_BATCH": "2",
        "MEMTUNE_ACCUMULATION": "1",
        "MEMTUNE_GLOBAL_BATCH": "4",
        "MEMTUNE_SEQUENCE_LENGTH": "32",
        "MEMTUNE_GPU_MEMORY_BYTES": str(2**30),
        "MEMTUNE_MEMORY_SHARE": "0.5",
    }
    script = str(EXAMPLES / "ddp_loop.py")
    report = place.run("torchrun", "--nproc_per_node=2", script, ranks=2, variables=variables).report
    assert (report.ending, report.device, report.world) == (Ending.SUCCEEDED, Device.VIRTUAL, 2)
    assert report.steps == 2
    assert report.memory.peak_allocated_bytes
    assert report.memory.device_total_bytes == 2**29, "what is not the run's share is not there"
    assert (report.applied.backend, report.applied.micro_batch) == ("ddp", 2)
