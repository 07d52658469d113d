"""Ends a training early if it differs from its plan, instead of after all its GPU hours."""

from __future__ import annotations

from collections.abc import Callable

from memtune.wire.pruning import STEADY_STEPS
from memtune.wire.report import Applied
from memtune.wire.script_batch import difference
from memtune_runner.rank import script_warnings
from memtune_runner.rank.bad_input import BadInputError, PlanNotAppliedError
from memtune_runner.rank.settings import Settings

# Far more than a script makes before its first step, such as for each task of a meta-learning.
_MOST_PASSES, _MOST_STEPS_OF_PASSES = 256, 32


def unseen_steps(backward_passes: int) -> str:
    """The message for a training whose optimizer, if it has one, is not seen."""
    return (
        f"{backward_passes} backward passes and no step of a torch optimizer: MemTune sees the steps of "
        "torch.optim.Optimizer and its subclasses alone; train with one of these"
    )


class PlanCheck:
    """Compares a train run with its plan once, after as many steps as the shortest probe has.

    Optimizers that take turns show only then.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_done = settings.is_probe  # the operator checks a probe from its report

    def backward_begins(self, passes: int, steps: int) -> None:
        """Raise BadInputError, also in a probe, if so many backward passes have led to no step that can be seen.

        Else the run would come to its end, or be taken for one that hangs, and only then be told what is wrong.
        """
        if not steps and passes >= max(_MOST_PASSES, _MOST_STEPS_OF_PASSES * self._settings.plan.accumulation):
            raise BadInputError(f"the script has made {unseen_steps(passes)}")

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
