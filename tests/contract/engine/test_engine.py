"""The engine under every backend on 1, 2 and 4 ranks: one global batch, one loss curve under any plan.

The reference is a plain training loop without the engine: one process, one batch, no micro-batches.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ranks import GLOBAL_BATCH, LAST_LR, MAX_NORM, RESUMED, SHORT_BATCH, STEPS
from engine_suite import equals_the_reference, plain_loop, stays_close, trained_by_ranks

pytestmark = pytest.mark.long

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


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@cache
def results(world: int, directory: Path) -> dict[str, Any]:
    """Return every plan's result on ``world`` ranks, from one start of the processes."""
    return trained_by_ranks(directory / str(world), world, EXACT.get(world, []) + CLOSE.get(world, []))


def result(world: int, plan: str, directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = results(world, directory).get(plan, {"error": "the ranks did not get that far"})
    assert "error" not in found, found["error"]
    return found


@pytest.mark.parametrize(("world", "plan"), cases(EXACT))
def test_in_fp32_every_plan_has_the_loss_of_one_rank_with_one_batch(world: int, plan: str, directory: Path) -> None:
    equals_the_reference(result(world, plan, directory))


@pytest.mark.parametrize(("world", "plan"), cases(CLOSE))
def test_shorter_formats_stay_close(world: int, plan: str, directory: Path) -> None:
    stays_close(result(world, plan, directory), plan)


def test_the_reference_learns_and_is_clipped() -> None:
    curve = plain_loop(torch.float32, "cpu", 2 * STEPS)
    assert curve.losses[-1] < 0.7 * curve.losses[0]
    assert max(curve.norms) > MAX_NORM


@pytest.mark.parametrize(("world", "plan"), cases(EXACT))
def test_samples_and_the_scheduler_count_optimizer_steps(world: int, plan: str, directory: Path) -> None:
    found = result(world, plan, directory)
    assert found["samples"] == STEPS // 5 * (4 * GLOBAL_BATCH + SHORT_BATCH)
    assert found["lr"] == pytest.approx(LAST_LR)


@pytest.mark.parametrize(("world", "plan"), [case for case in cases(EXACT) if case[1] in RESUMED])
def test_a_run_goes_on_from_its_checkpoint_with_the_same_loss(world: int, plan: str, directory: Path) -> None:
    found = result(world, plan, directory)
    assert found["resumed"] == pytest.approx(found["losses"][STEPS // 2 :], rel=1e-6)
    assert found["resumed_samples"] == found["samples"]
