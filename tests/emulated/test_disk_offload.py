"""DeepSpeed's offload to a disk (ZeRO-Infinity) on the emulated GPU: its own library, and real files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deepspeed_libraries
import pytest
from emulated_runs import example, memtune

_SCRIPTS = Path(__file__).parent / "scripts"
_LIBRARIES = Path(__file__).parents[1] / "support" / "programs" / "disk_libraries.py"
_PLAN = "bf16-z3-none-mb8x1-onvme-sdpa"
_MODEL = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 2048, "vocab_size": 16384,
}  # fmt: skip
_TRAINING = {"globalBatchSize": 8, "sequenceLength": 256, "optimizer": "adamw", "attention": "sdpa"}
_SPACE = {"backends": ["deepspeed"], "zeroStages": [3], "offload": ["nvme"]}
_EMBEDDING, _MLP, _ATTENTION = 16384 * 512, 3 * 512 * 2048, 4 * 512 * 512


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's libraries, where the script looks for them."""
    try:
        monkeypatch.setenv("DEEPSPEED_LIBRARIES", str(deepspeed_libraries.built()))
    except deepspeed_libraries.CannotBuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A directory that takes direct writes, as DeepSpeed's are: one in memory may not, but that of the checkout may."""
    build = Path(__file__).parents[2] / "build"
    build.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=build) as beside:
        for parent in (tmp_path, Path(beside)):
            directory = parent / "disk"
            directory.mkdir()
            if _takes_direct_writes(directory):
                yield directory
                return
    pytest.skip(f"neither {tmp_path} nor {build} takes direct writes")


def command_of(directory: Path, script: str, *arguments: str) -> dict[str, Any]:
    """The template of a pod that runs a script. Beside others of its directory, libraries would import them."""
    for path in (_SCRIPTS / script, _LIBRARIES):
        shutil.copy(path, directory)
    command = ["torchrun", str(directory / script), *arguments]
    return {"spec": {"containers": [{"name": "trainer", "image": "own:1", "command": command}]}}


def _takes_direct_writes(directory: Path) -> bool:
    try:
        os.close(os.open(directory / "direct", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


@pytest.mark.usefixtures("libraries")
def test_weights_and_states_go_to_files_and_memory_is_what_is_predicted(tmp_path: Path, disk: Path) -> None:
    job = example(
        tmp_path, "hf-trainer", {"nvmePath": str(disk)},
        model={"hfConfig": _MODEL},
        training=_TRAINING,
        template=command_of(tmp_path, "disk_offload.py"),
        tuning={"space": _SPACE},
    )  # fmt: skip
    done = memtune("emulate", str(job), "--plan", _PLAN, "--format", "json")
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = json.loads(done.stdout)["plans"]
    predicted = run["predictedBytes"]["allocated"]
    assert predicted["lower"] < run["peakBytes"]["allocated"] < predicted["upper"]
    assert run["pinnedPeakBytes"] > 0
    assert run["stubs"] == []
    weights, states = ([*(disk / "zero_stage_3" / name).rglob("*.swp")] for name in ("bfloat16params", "optimizer"))
    # Weights of less than 1 MiB stay in memory. Of all there are a copy in fp32, two moments and the gradient.
    large = 2 * _EMBEDDING + 4 * _MLP
    assert sum(file.stat().st_size for file in weights) == 2 * large
    assert sum(file.stat().st_size for file in states) == 16 * (large + 4 * _ATTENTION)


@pytest.mark.usefixtures("libraries")
def test_after_an_out_of_memory_a_smaller_plan_resumes_from_the_files_of_a_checkpoint(
    tmp_path: Path, disk: Path
) -> None:
    resources = {"nvmePath": str(disk), "gpuMemory": "3Gi", "shrink": {"afterStep": 3, "by": "48%"}}
    job = example(
        tmp_path, "quickstart", resources,
        model={"hfConfig": _MODEL},
        training=_TRAINING,
        integration="sdk",
        template=command_of(tmp_path, "disk_recovery.py", "--steps", "6", "--save-every", "2"),
        tuning={"mode": "Fixed", "plan": _PLAN, "space": _SPACE},
    )  # fmt: skip
    done = memtune("run", str(job), "--state", str(tmp_path / "state"))
    assert done.returncode == 0, done.stdout + done.stderr
    status = json.loads((tmp_path / "state" / "job.json").read_text())["status"]
    first, second = status["attempts"]
    assert (first["verdict"], second["verdict"]) == ("device-oom", "succeeded")
    assert "-onvme-" in second["plan"] != first["plan"] == _PLAN
    assert second["resumedSamples"] == first["checkpointSamples"] == 16
