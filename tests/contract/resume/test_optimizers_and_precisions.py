"""The resume table's entries for less common optimizers and for 16-bit formats.

Each resumes in the middle of a training and must have the losses of its second half.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_ranks import STEPS, settings_of
from engine_suite import trained_by_ranks
from warm_environment import forked_conversions

from memtune.plans.plan import Plan
from memtune.plans.resume import Way, engine_format, resumption
from memtune_runner.checkpoints import resolve

pytestmark = pytest.mark.long


class Case(NamedTuple):
    """Ranks and plan of a save, ranks and plan of its resume."""

    saved: str
    wanted: str
    world: int
    way: Way = Way.DIRECT


CASES = [
    Case("fp32-fsdp-none-mb4x1-lion", "fp32-ddp-none-mb4x2-lion", 1),
    Case("fp32-ddp-none-mb4x1-sgd", "fp32-fsdp-none-mb2x2-sgd", 2),
    Case("fp32-ddp-none-mb2x2-adafactor", "fp32-ddp-full-mb8x1-adafactor", 1),
    Case("fp32-fsdp-none-mb2x2-muon", "fp32-ddp-full-mb8x1-muon", 1),
    Case("fp32-z2-none-mb2x2-lion", "fp32-z1-full-mb4x1-lion", 2),
    Case("fp32-z3-none-mb2x2-sgd", "fp32-z3-none-mb1x4-sgd", 2),
    Case("fp16-z2-none-mb2x2", "fp16-z1-full-mb4x1", 2),
    Case("fp16-z2-none-mb4x1", "fp16-z3-none-mb2x4", 1, Way.CONVERT),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("choices")


@cache
def saved(directory: Path) -> dict[str, Any]:
    """Return every plan's saved first half and its whole training, from one start of the processes."""
    tasks = [_saving(case, directory) for case in CASES] + [case.saved for case in CASES]
    return trained_by_ranks(directory / "saved", 2, tasks)


@cache
def resumed(world: int, directory: Path) -> dict[str, Any]:
    assert [each for each in saved(directory).values() if "error" in each] == []
    tasks = [_resuming(case, directory) for case in CASES if case.world == world]
    return trained_by_ranks(directory / f"resumed-{world}", world, tasks)


def _saving(case: Case, directory: Path) -> str:
    return f"{case.saved} to {directory / case.saved}"


@cache
def _resuming(case: Case, directory: Path) -> str:
    with forked_conversions():
        source = resolve(settings_of(Plan.parse(case.wanted), case.world, resume_from=directory / case.saved))
    assert source is not None
    assert (source.directory == directory / case.saved) == (case.way is Way.DIRECT)
    return f"{case.wanted} from {source.directory}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.saved}-{case.wanted}-{case.world}")
def test_a_relaunch_continues_with_the_same_loss(case: Case, directory: Path) -> None:
    before, after = Plan.parse(case.saved), Plan.parse(case.wanted)
    assert resumption(engine_format(before), before, after, case.world == 2).way is case.way
    told = resumed(case.world, directory)
    found = told.get(_resuming(case, directory), {"error": "the ranks did not get that far"})
    assert "error" not in found, found["error"]
    # Muon orthogonalizes in bf16 whatever the plan's precision is, and processors round these products differently.
    of_optimizer = 1e-4 if "muon" in case.saved else 1e-5
    tolerance = of_optimizer if case.saved.startswith("fp32") else 1e-3
    assert found["losses"] == pytest.approx(saved(directory)[case.saved]["losses"][STEPS // 2 :], rel=tolerance)
