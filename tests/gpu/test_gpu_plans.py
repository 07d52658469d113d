"""Predicted against measured: twelve plans of one model on one GPU, and the page that bench/results keeps of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import gpu_truth
from gpu_pairs import Pair, prediction, single_gpu_pairs
from gpu_score import scored
from gpu_snapshot import replayed_bytes
from gpu_table import report, this_machine

RESULTS = Path(__file__).parents[2] / "bench" / "results"


def test_no_plan_takes_more_than_its_upper_bound() -> None:
    machine = this_machine()
    results = [gpu_truth.measured(pair) for pair in single_gpu_pairs(machine.gpu)]
    page = report("Twelve plans on one GPU", "python -m pytest tests/gpu", machine, results)
    (RESULTS / "gpu-plans.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join(page))
    assert [each for each in results if each.problem] == []
    found = scored(results, machine.gpu, lambda pair: prediction(pair, machine.gpu))
    assert [each.row.id for each in found if each.is_under] == []


def test_the_allocator_model_reserves_what_cuda_reserved(tmp_path: Path) -> None:
    for plan in ("bf16-ddp-none-mb1x1", "bf16-ddp-none-mb1x1-exp", "bf16-fsdp-full-mb2x1"):
        pair = Pair("0.1B", plan)
        measured = gpu_truth.measured(pair, tmp_path)
        assert measured.problem == ""
        with gzip.open(tmp_path / f"{pair.model}-{plan}-1.json.gz", "rt") as file:
            fixture = json.load(file)
        assert replayed_bytes(fixture) == fixture["peak_reserved_bytes"] == measured.reserved_bytes
