"""Predicted against measured: twelve plans of one model on one GPU, and the page that bench/results keeps of them."""

from __future__ import annotations

from pathlib import Path

import gpu_truth
import pytest
from gpu_pairs import Pair, single_gpu_pairs
from gpu_results import Results
from gpu_score import scored, ways
from gpu_snapshot import read, recorded, replayed
from gpu_table import Machine, report, this_machine
from gpu_trace import traced


@pytest.fixture(scope="module")
def machine() -> Machine:
    return this_machine()


def test_no_plan_takes_more_than_its_upper_bound(machine: Machine, results: Path) -> None:
    pairs = single_gpu_pairs(machine.gpu)
    traces = traced(pairs)
    found = [gpu_truth.measured(pair) for pair in pairs]
    page = report("Twelve plans on one GPU", "python -m pytest tests/gpu", [machine], found, traces)
    (results / "gpu-plans.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join(page))
    assert [each for each in found if each.problem] == []
    for predict in ways(machine.gpu, traces).values():
        assert [each.row.id for each in scored(found, machine.gpu, predict) if each.is_under] == []


@pytest.mark.parametrize("plan", ["bf16-ddp-none-mb1x1", "bf16-ddp-none-mb1x1-exp", "bf16-fsdp-full-mb2x1"])
def test_the_allocator_model_reserves_what_cuda_reserved(
    plan: str, machine: Machine, results: Path, tmp_path: Path
) -> None:
    made = tmp_path / f"0.1B-{plan}-1.json.gz"
    measured = gpu_truth.measured(Pair("0.1B", plan), made)
    assert measured.device_bytes, measured
    # Kept before it is judged: what the model misses is to be replayed where no GPU is.
    kept = Results(results)
    kept.begin(machine)
    kept.add_fixture(made)
    fixture = read(made)
    assert recorded(fixture).reserved_bytes == max(measured.building_bytes, measured.reserved_bytes)
    assert replayed(fixture) == recorded(fixture)
