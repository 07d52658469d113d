"""A probe: as few and as short steps as tell the peak, then a clean end, wherever the script is by then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memtune.applied import shortened_accumulation
from memtune.plan import Plan
from memtune_runner.settings import Settings

DEFAULT_STEPS = 3
# A dynamic loss scale starts at 2^16 or 2^32 and is halved at each skipped step: beyond that nothing will ever fit it.
MOST_SKIPPED_STEPS = 64


class ProbeFinished(BaseException):
    """Ends the script of a probe that has seen enough. No ``except Exception`` of the script's stands in its way."""


def accumulation(settings: Settings) -> int:
    """The micro-batches of one optimizer step in this run: a probe's steps are shortened."""
    return shortened_accumulation(settings.plan) if settings.is_probe else settings.plan.accumulation


def effective_plan(settings: Settings) -> Plan:
    """The plan as this run carries it out."""
    return replace(settings.plan, accumulation=accumulation(settings))


class Probe:
    """Knows when a probe is over. An integration that still evaluates and saves then ends it by itself."""

    def __init__(self, steps: int) -> None:
        self._wanted_steps = steps
        self._deferred = False
        self._last_act: Callable[[], None] | None = None
        self._is_ending = False
        self.evaluated = False  # since the last step
        self.has_enough = False

    @classmethod
    def of(cls, settings: Settings) -> Probe | None:
        """The probe that a run is; None for a train run."""
        return cls(settings.probe_steps or DEFAULT_STEPS) if settings.is_probe else None

    def defer(self) -> None:
        """Leave the end to an integration, which calls ``finish``."""
        self._deferred = True

    def at_the_end(self, act: Callable[[], None]) -> None:
        """What an integration still does when the last step is over, with the model as it is then."""
        self._last_act = act

    def stepped(self, steps: int, skipped: int) -> None:
        """So many steps were made and so many skipped until now."""
        self.has_enough = steps >= self._wanted_steps or skipped >= MOST_SKIPPED_STEPS

    def forward_begins(self, is_evaluation: bool) -> None:
        """Raise ProbeFinished where the script goes on after the last step; one batch of an evaluation still counts.

        It ends here, not in the optimizer, so that a second optimizer, the scheduler and a save have had their turn.
        """
        if self._deferred or self._is_ending or not self.has_enough:
            return
        if self.evaluated or not is_evaluation:
            self.finish()
        self.evaluated = True

    def finish(self) -> None:
        """End the script."""
        act, self._last_act = self._last_act, None
        if act is not None:
            self._is_ending = True
            act()
            self._is_ending = False
        raise ProbeFinished(f"the probe has seen its {self._wanted_steps} steps")
