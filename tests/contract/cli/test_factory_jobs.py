"""`memtune run` and `memtune plan` of a job with a factory, as processes: traced, or an error message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from warm_environment import tracing_python

from memtune_cli.main import main

PROGRAMS = Path(__file__).parents[2] / "support" / "programs"
_PATHS = os.pathsep.join(sys.path)


def job(directory: Path, factory: str, **model: Any) -> Path:
    template = {"spec": {"containers": [{"name": "trainer", "image": "mine:1", "command": ["python", "train.py"]}]}}
    body = {
        "apiVersion": "memtune.dev/v1alpha1",
        "kind": "MemoryTunedJob",
        "metadata": {"name": "own"},
        "spec": {
            "model": {"factory": factory, **model},
            "training": {"globalBatchSize": 4, "sequenceLength": 8, "attention": "sdpa"},
            "resources": {"gpusPerNode": 1, "gpuMemory": "64Mi", "device": "virtual"},
            "template": template,
            "tuning": {
                "mode": "PredictOnly",
                "space": {"precision": ["fp32"], "checkpointing": ["none"], "backends": ["fsdp"]},
            },
        },
    }
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump(body))
    return file


def predicted(file: Path) -> tuple[int, str, dict[str, Any]]:
    """Return the exit code, the output and the status of `memtune run`."""
    state = file.parent / "state"
    done = subprocess.run(
        [tracing_python(), "-m", "memtune_cli.main", "run", str(file), "--state", str(state)],
        env={**os.environ, "PYTHONPATH": _PATHS, "OMP_NUM_THREADS": "1"},
        cwd=PROGRAMS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, json.loads((state / "job.json").read_text())["status"]


def test_a_factory_is_traced_and_predicted_on_this_machine(tmp_path: Path) -> None:
    code, said, status = predicted(job(tmp_path, "factories:sized", factoryArguments={"blocks": 5}))
    assert code == 0, said
    assert status["trace"]["message"] == "Layers, 5,280 parameters, 5 repeated blocks, traced without a GPU"
    assert status["prediction"]["deviceBytes"]["expected"] > 0


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("factories:data_dependent", "tracing stopped in Choosing, operator aten.index.Tensor"),
        ("nowhere:build", "there is no module nowhere; let it be in the working directory"),
    ],
)
def test_a_factory_that_cannot_be_traced_is_reported(factory: str, expected: str, tmp_path: Path) -> None:
    code, said, status = predicted(job(tmp_path, factory))
    assert code == 1, said
    assert (status["phase"], status["trace"]["verdict"]) == ("Failed", "user-error")
    assert expected in status["message"]
    (failed,) = [each for each in status["conditions"] if each["type"] == "Failed"]
    assert failed["reason"] == "NotTraced"


def test_a_job_with_a_factory_is_planned_where_torch_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", tracing_python())
    monkeypatch.chdir(PROGRAMS)
    assert main(["plan", str(job(tmp_path, "factories:plain")), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["notes"][0] == "factories:plain was traced here: Layers, 3,168 parameters, 3 repeated blocks"
    assert document["chosen"]["bytes"]["device"]["expected"] > 3 * 4 * 3_168
    assert main(["explain", str(job(tmp_path, "factories:plain")), "--format", "json"]) == 0
    assert "replay of the trace" in capsys.readouterr().out


def test_without_torch_a_job_with_a_factory_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert main(["plan", str(job(tmp_path, "factories:plain"))]) == 2
    assert "predicted by tracing, and that needs torch, which is not installed" in capsys.readouterr().err
