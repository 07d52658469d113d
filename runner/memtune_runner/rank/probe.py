"""A probe: as few and as short steps as tell the peak, then a clean end, wherever the script is by then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memtune.plans.plan import Plan
from memtune.wire.applied import shortened_accumulation
from memtune.wire.pruning import NOTHING, Pruned, Step, Target, pruned
from memtune.wire.report import MOST_STEPS, MeasuredStep
from memtune_runner.rank import agreement
from memtune_runner.rank.settings import Settings

DEFAULT_STEPS = 3
# A dynamic loss scale starts at 2^16 or 2^32 and is halved at each skipped step: beyond that nothing will ever fit it.
MOST_SKIPPED_STEPS = 64
# The first step makes the optimizer's states: no other takes as long, and only later ones take as much memory.
_WARM_UP_STEPS = 1


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

    def __init__(self, steps: int, target: Target = NOTHING, world: int = 1) -> None:
        self.world = world
        self._wanted_steps, self._target = steps, target
        self._seen: list[Step] = []
        self._measured: list[MeasuredStep] = []
        self.pruned: Pruned | None = None
        self._deferred = False
        self._last_act: Callable[[], None] | None = None
        self._is_ending = False
        self._steps = 0
        self.evaluated = False  # since the last step
        self.has_enough = False

    @classmethod
    def of(cls, settings: Settings, world: int) -> Probe | None:
        """The probe that a run of so many ranks is; None for a train run."""
        return cls(settings.probe_steps or DEFAULT_STEPS, settings.target, world) if settings.is_probe else None

    @property
    def measured_steps(self) -> tuple[MeasuredStep, ...]:
        """What the steps told, of many as many as a report has room for, the first and the last among them."""
        last, room = len(self._measured) - 1, MOST_STEPS - 1
        places = range(last + 1) if last <= room else (round(place * last / room) for place in range(MOST_STEPS))
        return tuple(self._measured[place] for place in places)

    def defer(self) -> None:
        """Leave the end to an integration, which calls ``finish``."""
        self._deferred = True

    def at_the_end(self, act: Callable[[], None]) -> None:
        """What an integration still does when the last step is over, with the model as it is then."""
        self._last_act = act

    def stepped(self, steps: int, skipped: int) -> None:
        """So many steps were made and so many skipped until now."""
        self._steps = steps + skipped
        self.has_enough = self.pruned is not None or steps >= self._wanted_steps or skipped >= MOST_SKIPPED_STEPS

    def measured(self, seconds: float, tokens_per_second: float, device_bytes: int) -> None:
        """The step that has just ended took and gave this, 0 where nobody knows; the bytes are the peak until now."""
        number = self._steps
        if number <= _WARM_UP_STEPS:
            return
        self._seen.append(Step(tokens_per_second, device_bytes))
        if seconds:
            self._measured.append(MeasuredStep(number, round(seconds, 6), device_bytes))
        if any(self._target) and not self.has_enough:
            self.pruned = agreement.on(number, pruned(self._target, self._seen), self.world)
            self.has_enough = self.pruned is not None

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
        raise ProbeFinished(f"the probe has seen enough after {self._steps} steps")


_current: Probe | None = None


def begin(probe: Probe | None) -> None:
    """This process is this probe from now on, or none."""
    global _current
    _current = probe


def has_enough() -> bool:
    """Whether this process is a probe that needs no further step."""
    return _current is not None and _current.has_enough
