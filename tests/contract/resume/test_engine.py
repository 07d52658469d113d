"""The resume table's entries for torch's distributed checkpoints: any sharding, any world, any precision.

The engine has one loss curve under every plan, so a resume must continue with its second half.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from engine_ranks import GLOBAL_BATCH, LAST_LR, SHORT_BATCH, STEPS
from engine_suite import Case, reference, trained_by_ranks

from memtune.plans.plan import Plan
from memtune.plans.resume import Format, Way, resumption

# The number of ranks that save each.
SAVED = {
    2: ["fp32-ddp-none-mb2x2", "fp32-fsdp-none-mb4x1", "bf16-fsdp-none-mb2x2"],
    1: ["fp32-fsdp-none-mb4x2", "fp32-ddp-none-mb8x1"],
}


CASES = [
    Case("fp32-ddp-none-mb2x2", 2, "fp32-ddp-full-mb1x8", 1),
    Case("fp32-ddp-none-mb2x2", 2, "fp32-fsdp-none-mb8x1", 1),
    Case("fp32-ddp-none-mb2x2", 2, "fp32-fsdpsgo-none-mb1x4", 2),
    Case("fp32-ddp-none-mb2x2", 2, "bf16-fsdp-none-mb2x2", 2),
    Case("fp32-fsdp-none-mb4x1", 2, "fp32-ddp-none-mb4x2", 1),
    Case("fp32-fsdp-none-mb4x1", 2, "fp32-fsdp-every2-mb2x4", 1),
    Case("fp32-fsdp-none-mb4x1", 2, "fp32-ddp-none-mb4x1", 2),
    Case("fp32-fsdp-none-mb4x1", 2, "fp32-fsdphyb-none-mb1x4", 2),
    Case("bf16-fsdp-none-mb2x2", 2, "fp32-ddp-none-mb8x1", 1),
    Case("bf16-fsdp-none-mb2x2", 2, "fp16-fsdp-none-mb4x1", 2),
    Case("fp32-fsdp-none-mb4x2", 1, "fp32-fsdp-none-mb1x4", 2),
    Case("fp32-fsdp-none-mb4x2", 1, "fp32-ddp-none-mb2x2", 2),
    Case("fp32-ddp-none-mb8x1", 1, "fp32-fsdp-full-mb2x2", 2),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@cache
def saved(directory: Path) -> dict[int, dict[str, Any]]:
    """Return each plan's saved first half, from one start of the processes for each world."""
    return {
        world: trained_by_ranks(
            directory / f"saved-{world}", world, [f"{plan} to {directory}/{world}-{plan}" for plan in plans]
        )
        for world, plans in SAVED.items()
    }


@cache
def resumed(world: int, directory: Path) -> dict[str, Any]:
    found = saved(directory)
    assert all("error" not in each for of_world in found.values() for each in of_world.values()), found
    tasks = [_task(case, directory) for case in CASES if case.world == world]
    return trained_by_ranks(directory / f"resumed-{world}", world, tasks)


def _task(case: Case, directory: Path) -> str:
    return f"{case.wanted} from {directory}/{case.saved_world}-{case.saved}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.saved}-{case.saved_world}-{case.wanted}-{case.world}")
def test_a_relaunch_continues_with_the_same_loss(case: Case, directory: Path) -> None:
    plans = Plan.parse(case.saved), Plan.parse(case.wanted)
    assert resumption(Format.DCP, *plans, case.saved_world == case.world).way is Way.DIRECT
    found = resumed(case.world, directory).get(_task(case, directory), {"error": "the ranks did not get that far"})
    assert "error" not in found, found["error"]
    is_exact = all(str(plan).startswith("fp32") for plan in plans)
    assert found["losses"] == pytest.approx(reference().losses[STEPS // 2 :], rel=1e-5 if is_exact else 0.02)
    assert found["samples"] == STEPS // 5 * (4 * GLOBAL_BATCH + SHORT_BATCH)
    assert found["lr"] == pytest.approx(LAST_LR), "the schedule goes on as well"
