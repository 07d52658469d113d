"""The resume table's entries for 8-bit AdamW, with real bitsandbytes and torchao on the CPU.

Both keep tensors below 4096 values in 32 bits. With a width of 48, matrices are larger but their halves are not, and
the halves end within one of torchao's blocks.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from engine_ranks import STEPS
from engine_suite import Case, trained_by_ranks

from memtune.plans.plan import Plan
from memtune.plans.resume import Way, engine_format, resumption

# Separate from the other packages: transformers would import these, too, and take seconds longer.
LIBRARIES = Path(sys.prefix) / "eight-bit"
DDP, FSDP = "fp32-ddp-none-mb2x2-adamw8bit", "fp32-fsdp-none-mb2x2-adamw8bit"
ALONE = "fp32-fsdp-none-mb4x2-adamw8bit"
PLAIN_DDP, PLAIN_FSDP = DDP.removesuffix("-adamw8bit"), FSDP.removesuffix("-adamw8bit")


CASES = [
    Case(DDP, 2, "fp32-ddp-full-mb8x1-adamw8bit", 1),
    Case(FSDP, 2, "fp32-fsdpsgo-none-mb1x4-adamw8bit", 2),
    Case(FSDP, 2, "fp32-fsdphyb-none-mb2x2-adamw8bit", 2),
    Case(FSDP, 2, "fp32-fsdp-full-mb8x1-adamw8bit", 1),
    Case(ALONE, 1, "fp32-fsdp-none-mb4x1-adamw8bit", 2),
    Case("fp32-z0-none-mb2x2-adamw8bit", 2, "fp32-z0-none-mb4x2-adamw8bit", 1),
    Case("fp32-z2-none-mb2x2-adamw8bit", 2, "fp32-z1-none-mb1x4-adamw8bit", 2),
    Case("fp32-z3-none-mb2x2-adamw8bit", 2, "fp32-z3-full-mb4x1-adamw8bit", 2),
]
# The error of each: another error would say nothing about the table.
NO_STATE = "RuntimeError: Missing key in checkpoint state_dict: optimizer.state."
OTHER_STEP = "ValueError: Invalid checkpoint metadata for optimizer.state."
OTHER_LR = "ValueError: Invalid checkpoint metadata for optimizer.param_groups.0.lr"
IMPOSSIBLE = {
    (DDP, FSDP): NO_STATE,
    (FSDP, DDP): OTHER_STEP,
    (PLAIN_DDP, DDP): OTHER_STEP,
    (DDP, PLAIN_DDP): NO_STATE,
    (PLAIN_FSDP, FSDP): "RuntimeError: lr was changed to a non-Tensor object",
    (FSDP, PLAIN_FSDP): OTHER_LR,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("eight-bits")


@cache
def saved(world: int, directory: Path) -> dict[str, Any]:
    """Return every plan's saved first half and its whole training, from one start of the processes."""
    plans = {case.saved for case in CASES if case.saved_world == world}
    if world == 2:
        plans |= {PLAIN_DDP, PLAIN_FSDP}
    tasks = [f"{plan} to {directory}/{plan}" for plan in plans]
    return _trained(directory / f"saved-{world}", world, [*tasks, *plans])


@cache
def resumed(world: int, directory: Path) -> dict[str, Any]:
    errors = [each["error"] for of in (1, 2) for each in saved(of, directory).values() if "error" in each]
    assert errors == []
    tasks = [_task(case.saved, case.wanted, directory) for case in CASES if case.world == world]
    if world == 2:
        tasks += [_task(before, after, directory) for before, after in IMPOSSIBLE]
    return _trained(directory / f"resumed-{world}", world, tasks)


def _trained(place: Path, world: int, tasks: list[str]) -> dict[str, Any]:
    path = os.pathsep.join([*sys.path, str(LIBRARIES)])
    # Without torchao's compiled kernels, which take a minute and are not the subject of the test.
    return trained_by_ranks(place, world, tasks, PYTHONPATH=path, MODEL_WIDTH="48", TORCHDYNAMO_DISABLE="1")


def _task(before: str, after: str, directory: Path) -> str:
    return f"{after} from {directory}/{before}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.saved}-{case.saved_world}-{case.wanted}-{case.world}")
def test_a_relaunch_continues_with_the_same_loss(case: Case, directory: Path) -> None:
    before, after = Plan.parse(case.saved), Plan.parse(case.wanted)
    assert resumption(engine_format(before), before, after, case.saved_world == case.world).way is Way.DIRECT
    found = resumed(case.world, directory)[_task(case.saved, case.wanted, directory)]
    assert "error" not in found, found["error"]
    # Shards of another size have other states in 8 bits.
    is_cut_alike = case.saved_world == case.world and "hyb" not in case.wanted
    tolerance = 1e-5 if is_cut_alike else 1e-2
    expected = saved(case.saved_world, directory)[case.saved]["losses"][STEPS // 2 :]
    assert found["losses"] == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(("before", "after"), IMPOSSIBLE)
def test_plans_that_cannot_resume_a_checkpoint_are_refused(before: str, after: str, directory: Path) -> None:
    plans = Plan.parse(before), Plan.parse(after)
    assert resumption(engine_format(plans[0]), *plans, same_world=True).way is Way.IMPOSSIBLE
    found = resumed(2, directory)[_task(before, after, directory)]
    assert "error" in found, "the table can have more"
    assert IMPOSSIBLE[before, after] in found["error"]
