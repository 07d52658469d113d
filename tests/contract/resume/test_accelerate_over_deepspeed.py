"""The resume table's entries for accelerate with DeepSpeed, direct and converted."""

from __future__ import annotations

from pathlib import Path

import pytest
from resumed_training import Whole

from memtune.plans.resume import Way


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole("accelerate", "fp32-z3-none-mb4x2-bk1m", 1, tmp_path_factory.mktemp("whole") / "store")


# The first goes on with another accumulation in the midst of an epoch.
@pytest.mark.parametrize(
    ("plan", "world", "way"), [("fp32-z3-full-mb2x4-bk1m", 1, Way.DIRECT), ("fp32-z3-none-mb2x2-bk1m", 2, Way.CONVERT)]
)
def test_a_relaunch_continues_with_the_same_loss(plan: str, world: int, way: Way, whole: Whole, tmp_path: Path) -> None:
    whole.goes_on(plan, world, way, tmp_path / "store")
