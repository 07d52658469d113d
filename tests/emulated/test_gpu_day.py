"""A GPU day from its preparation to its tables, on the emulated GPU, so that its first run is not on a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emulated_runs import emulate
from gpu_results import Results
from gpu_snapshot import read, recorded, replayed
from warm_environment import tracing_python, warm_emulated

from dev.gpu_day import collect, prepare
from dev.gpu_day.outcomes import runs_of
from dev.gpu_day.places import ROOT, variables
from memtune.gpus.driver_overhead import expected_overhead
from memtune.memory.formulas.recipe import workspace_bytes
from memtune.units import MIB

_MODEL = "0.1B"
_SECONDS = 1500  # of each command, on a machine that may be busy; on an idle one it takes two to four minutes


@pytest.mark.parametrize(
    ("gpu", "mib"), [("h100-80gb", 32), ("a100-80gb", 8.125), ("b200-180gb", 32), ("rtx5090-32gb", 32)]
)
def test_both_workspaces_of_cublas_are_those_that_are_predicted(
    gpu: str, mib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch chooses them by the chip: PyTorch, CublasHandlePool.cpp."""
    monkeypatch.setenv("PYTHONPATH", variables()["PYTHONPATH"])
    code, result = emulate(ROOT / "dev" / "gpu_day" / "constants.py", "--gpu", gpu)
    assert code == 0, result["printed"][-2000:]
    told = json.loads(next(line for line in result["printed"].splitlines() if line.startswith("{")))
    found = [told[f"workspace_bytes_of_the_{each}_pass"] for each in ("forward", "backward")]
    assert found == [mib * MIB] * 2
    assert sum(found) == workspace_bytes(gpu)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_a_fixture_has_the_retries_and_the_out_of_memory_that_torch_counts(
    settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", variables()["PYTHONPATH"])
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    code, result = emulate(Path(__file__).parent / "scripts" / "retries.py")
    assert code == 0, result["printed"][-2000:]
    told = json.loads(next(line for line in result["printed"].splitlines() if line.startswith("{")))
    fixture = told["fixture"]
    assert fixture["expandable"] == bool(settings)
    assert sum(kind == "e" for kind, *_ in fixture["events"]) == 1
    assert (told["retries"], told["ooms"]) == (2, 1)
    assert fixture["retries"] == 2
    assert recorded(fixture)[1:] == (2, 1)
    assert recorded({**fixture, "retries": None}) == recorded(fixture), "the events tell as many"
    assert replayed(fixture) == recorded(fixture)


def outcomes(command: str, results: Path) -> dict[str, Any]:
    """What each part of a command came to; all of them must end well."""
    arguments = (command, "--rehearsal", "--seconds", str(_SECONDS), "--results", str(results))
    options = ("--gpu", "h200-141gb", "--time-limit", str(_SECONDS + 60))
    code, result = emulate(ROOT / "dev" / "gpu-day", *options, arguments=arguments, limit=_SECONDS + 120)
    assert code == 0, result["printed"][-2000:] + (results / f"{command}.log").read_text()[-3000:]
    found = {each["name"]: each for each in _parts(results / f"{command}.jsonl")}
    assert {each["outcome"] for each in found.values()} == {"ended well"}
    return found


def _parts(file: Path) -> list[dict[str, Any]]:
    (run,), unread = runs_of(file)
    assert unread == 0
    parts: list[dict[str, Any]] = run["parts"]
    return parts


@pytest.mark.long
def test_a_gpu_day_from_its_preparation_to_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, results, into = (tmp_path / each for each in ("prepared", "results", "into"))
    for module, names in {
        prepare: ("PREPARED", "WHEELS", "SITE", "PREDICTIONS", "EMULATED"),
        collect: ("PREDICTIONS", "EMULATED"),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, prepared / name.lower())
    monkeypatch.setattr(
        prepare, "_fetch", lambda *_: None
    )  # from a package index: tests/contract/bench/test_gpu_day.py
    for module in prepare, collect:
        monkeypatch.setattr(module, "development_python", tracing_python)
    monkeypatch.setenv("EMULATED_PYTHON", str(warm_emulated()))
    emulate_pairs = prepare._emulate
    monkeypatch.setattr(prepare, "_emulate", lambda gpu, models: emulate_pairs(gpu, models, "--most", "2"))
    assert prepare.prepare(["3.12"], "h200-141gb", [_MODEL]) == 0
    beforehand = Results(prepared / "emulated").of_pairs.values()
    assert [each.problem for each in beforehand] == [""] * 2

    parts = outcomes("1", results)
    assert parts["machine"]["told"]["nvidia_smi_driver_version"] == "580.65.06"
    assert parts["machine"]["told"]["driver_library"] == "unknown"
    constants = parts["constants"]["told"]
    assert constants["context_bytes"] == expected_overhead(1)["context"], "the emulated GPU has what is predicted"
    assert constants["workspace_bytes_of_the_forward_pass"] == 32 * MIB
    assert constants["workspace_bytes_of_the_backward_pass"] == 32 * MIB
    steps = [parts[f"steps with{each}"]["told"] for each in ("out a recording", " recorded events", " recorded stacks")]
    assert len({each["reserved_bytes"] for each in steps}) == 1
    assert parts["counters and out-of-memory"]["passed"] == 4
    outcomes("2", results)
    parts = outcomes("3", results)
    assert {name: each["passed"] for name, each in parts.items() if "passed" in each} == {
        "a job from its first probe to its end": 1,
        "scripts under their plans": 8,
        "engine, resume": 15,
        "offloads": 4,
        "allocator": 3,
    }
    losses = "it compares losses of several steps, and an emulated GPU computes no gradients"
    assert {reason for each in parts.values() for reason in each.get("reasons", ())} == {
        losses,
        "there is one GPU, and the suite has run on it",
    }
    assert len(list(results.iterdir())) <= 8

    assert collect.collect(results, into, [_MODEL]) == 0
    rows = [line for line in (into / "gpu-truth.md").read_text().splitlines() if line.startswith(f"| {_MODEL} |")]
    assert len(rows) == 2, "one pair of each command, for the second resumes from the first"
    assert all(row.split(" | ")[9] == "+0.0%" for row in rows), "the emulated GPU beside itself"
    assert "| building | building by formulas |" in (into / "gpu-truth.md").read_text()
    assert "on an emulated GPU, measured beforehand:\nNVIDIA H200 (" in (into / "gpu-truth.md").read_text()
    day = (into / "gpu-day.md").read_text()
    assert "| 3 | scripts under their plans | ended well | 8 | 0 |" in day
    assert losses in next(line for line in day.splitlines() if line.startswith("| 3 | engine, resume | ended well |"))
    assert "The prediction has changed since for: none." in day
    kept = [read(each) for each in (into / "snapshots").iterdir()]
    assert len(kept) == 2 + 3, "of the pairs, and of the allocator"
    for fixture in kept:
        assert "retries" in fixture
        assert replayed(fixture) == recorded(fixture)
