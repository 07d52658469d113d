"""Ends a training early if it differs from its plan, instead of after all its GPU hours."""

from __future__ import annotations

from collections.abc import Callable

from memtune.wire.applied import difference
from memtune.wire.probe_pruning import STEADY_STEPS
from memtune.wire.report import Applied
from memtune_runner.rank import script_warnings
from memtune_runner.rank.bad_input import PlanNotAppliedError
from memtune_runner.rank.settings import Settings


class PlanCheck:
    """Compares an attempt with its plan once, after as many steps as the shortest probe has.

    Optimizers that take turns show only then.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_done = settings.is_probe  # the operator checks a probe from its report

    def forward_begins(self, steps: int, applied: Callable[[], Applied]) -> None:
        """Raise PlanNotAppliedError if the steps so far did not apply the plan."""
        if self._is_done or steps < STEADY_STEPS:
            return
        self._is_done = True
        settings = self._settings
        seen = applied()
        if settings.plan.expandable_segments and seen.expandable_segments is False:
            script_warnings.warn(
                "the plan asks for expandable segments, and the allocator has none: leave PYTORCH_ALLOC_CONF and "
                "PYTORCH_CUDA_ALLOC_CONF to the runner, and use a torch that has them",
                once="expandable segments",
            )
        found = difference(settings.plan, seen, settings.world, False, settings.integration)
        if found:
            raise PlanNotAppliedError(found)
