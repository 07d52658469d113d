"""Predicted against measured: twelve plans of one model on one GPU, and the page that bench/results keeps of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import gpu_truth
import pytest
from gpu_pairs import Pair, single_gpu_pairs
from gpu_score import scored, ways
from gpu_snapshot import KEPT, read, replayed_bytes
from gpu_table import report, this_machine
from gpu_trace import traced

RESULTS = Path(__file__).parents[2] / "bench" / "results"


def test_no_plan_takes_more_than_its_upper_bound() -> None:
    machine = this_machine()
    pairs = single_gpu_pairs(machine.gpu)
    traces = traced(pairs)
    results = [gpu_truth.measured(pair) for pair in pairs]
    page = report("Twelve plans on one GPU", "python -m pytest tests/gpu", machine, results, traces)
    (RESULTS / "gpu-plans.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join(page))
    assert [each for each in results if each.problem] == []
    for predict in ways(machine.gpu, traces).values():
        assert [each.row.id for each in scored(results, machine.gpu, predict) if each.is_under] == []


@pytest.mark.parametrize("plan", ["bf16-ddp-none-mb1x1", "bf16-ddp-none-mb1x1-exp", "bf16-fsdp-full-mb2x1"])
def test_the_allocator_model_reserves_what_cuda_reserved(plan: str, tmp_path: Path) -> None:
    measured = gpu_truth.measured(Pair("0.1B", plan), tmp_path)
    assert measured.device_bytes, measured
    (made,) = tmp_path.glob("*.json.gz")
    # Kept before it is judged: what the model misses is to be replayed where no GPU is.
    KEPT.mkdir(exist_ok=True)
    shutil.copy(made, KEPT)
    fixture = read(made)
    assert replayed_bytes(fixture) == fixture["peak_reserved_bytes"] == measured.reserved_bytes
