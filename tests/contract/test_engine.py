"""The engine under every backend, on 1, 2 and 4 ranks: one global batch, one loss curve, whatever the plan.

The reference is a plain training loop without the engine: one process, one batch, no micro-batches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pytest
import torch
from engine_ranks import (
    GLOBAL_BATCH,
    LR,
    MAX_NORM,
    RESUMED,
    SHORT_BATCH,
    STEPS,
    decaying,
    decoder,
    global_batches,
    loss_of,
)

TIMEOUT_SECONDS = 540
EXACT = {
    1: ["fp32-ddp-none-mb4x2", "fp32-fsdp-full-mb1x8", "fp32-z0-none-mb8x1", "fp32-z3-sel-mb2x4"],
    2: [
        "fp32-ddp-every2-mb2x2",
        "fp32-fsdp-none-mb4x1",
        "fp32-fsdp-every2-mb1x4",
        "fp32-fsdpsgo-sel-mb2x2",
        "fp32-z0-full-mb2x2",
        "fp32-z1-none-mb1x4",
        "fp32-z2-every2-mb4x1",
        "fp32-z3-none-mb2x2",
        "fp32-z3-full-mb1x4",
        "fp32-z3-every2-mb2x2",
    ],
    4: [
        "fp32-ddp-sel-mb1x2",
        "fp32-fsdphyb-none-mb1x2",
        "fp32-z1-sel-mb1x2",
        "fp32-z2-none-mb2x1",
        "fp32-z3-full-mb1x2",
    ],
}
CLOSE = {
    1: ["bf16-ddp-none-mb8x1", "fp16-ddp-none-mb4x2", "bf16-z2-none-mb4x2"],
    2: [
        "bf16-ddp-full-mb2x2",
        "bf16-fsdp-sel-mb2x2-g32",
        "bf16-z0-none-mb4x1",
        "bf16-z1-none-mb2x2-g32",
        "bf16-z3-full-mb2x2",
        "fp16-fsdp-none-mb2x2-g32",
        "fp16-z2-none-mb2x2",
    ],
}


def cases(plans: dict[int, list[str]]) -> list[tuple[int, str]]:
    return [(world, plan) for world, chosen in plans.items() for plan in chosen]


class Curve(NamedTuple):
    losses: list[float]
    norms: list[float]


@cache
def reference(dtype: torch.dtype = torch.float32) -> Curve:
    """A plain loop; with a shorter format, plain autocast over fp32 weights."""
    torch.set_num_threads(1)
    model = decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    scheduler = decaying(optimizer)
    curve = Curve([], [])
    for batch in global_batches():
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            loss = loss_of(model, batch)
        loss.backward()
        curve.norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
        curve.losses.append(loss.item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return curve


def deviation(losses: list[float], expected: list[float]) -> float:
    return fmean(abs(ours / theirs - 1) for ours, theirs in zip(losses, expected, strict=True))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@cache
def results(world: int, directory: Path) -> dict[str, Any]:
    """What every plan did on so many ranks: one start of the processes for all of them."""
    place = directory / str(world)
    place.mkdir()
    plans = EXACT.get(world, []) + CLOSE.get(world, [])
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "DS_LOG_LEVEL": "error",
    }
    logs = [(place / f"rank-{rank}.log").open("w") for rank in range(world)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "engine_ranks", str(place), str(rank), str(world), *plans],
            env=variables,
            stdout=logs[rank],
            stderr=subprocess.STDOUT,
        )
        for rank in range(world)
    ]
    try:
        for each in ranks:
            each.wait(TIMEOUT_SECONDS)
    finally:
        for each, log in zip(ranks, logs, strict=True):
            each.kill()
            each.wait()
            log.close()
    found = place / "results.json"
    assert found.exists(), f"no rank got anywhere:\n{(place / 'rank-0.log').read_text()[-4000:]}"
    done: dict[str, Any] = json.loads(found.read_text())
    return done


def result(world: int, plan: str, directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = results(world, directory).get(plan, {"error": "the ranks did not get that far"})
    assert "error" not in found, found["error"]
    return found


@pytest.mark.parametrize(("world", "plan"), cases(EXACT))
def test_in_fp32_every_plan_has_the_loss_of_one_rank_with_one_batch(world: int, plan: str, directory: Path) -> None:
    found, expected = result(world, plan, directory), reference()
    assert found["losses"] == pytest.approx(expected.losses, rel=1e-5)
    assert found["norms"] == pytest.approx(expected.norms, rel=1e-4)
    assert found["skipped"] == 0


@pytest.mark.parametrize(("world", "plan"), cases(CLOSE))
def test_shorter_formats_stay_close(world: int, plan: str, directory: Path) -> None:
    losses, expected = result(world, plan, directory)["losses"], reference()
    assert losses == pytest.approx(expected.losses, rel=0.02)
    assert fmean(losses) == pytest.approx(fmean(expected.losses), rel=0.005)
    plain = reference(torch.bfloat16 if plan.startswith("bf16") else torch.float16)
    # No worse than plain autocast, but for the noise of its own rounding, a tenth of a percent.
    assert deviation(losses, expected.losses) <= deviation(plain.losses, expected.losses) + 0.001
    assert result(world, plan, directory)["skipped"] == 0


def test_the_reference_learns_and_is_clipped() -> None:
    curve = reference()
    assert curve.losses[-1] < 0.7 * curve.losses[0]
    assert max(curve.norms) > MAX_NORM


@pytest.mark.parametrize(("world", "plan"), cases(EXACT))
def test_samples_and_the_scheduler_count_optimizer_steps(world: int, plan: str, directory: Path) -> None:
    found = result(world, plan, directory)
    assert found["samples"] == STEPS // 5 * (4 * GLOBAL_BATCH + SHORT_BATCH)
    assert found["lr"] == pytest.approx(LR * 0.7**4)


@pytest.mark.parametrize(("world", "plan"), [case for case in cases(EXACT) if case[1] in RESUMED])
def test_a_run_goes_on_from_its_checkpoint_with_the_same_loss(world: int, plan: str, directory: Path) -> None:
    found = result(world, plan, directory)
    assert found["resumed"] == pytest.approx(found["losses"][STEPS // 2 :], rel=1e-6)
    assert found["resumed_samples"] == found["samples"]
