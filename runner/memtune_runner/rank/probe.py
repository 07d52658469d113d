"""A probe: runs as few and short steps as show the peak, then ends the script cleanly."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from memtune.plans.plan import Plan
from memtune.wire.applied import shortened_accumulation
from memtune.wire.probe_pruning import NOTHING, STEADY_STEPS, Pruned, Step, Target, pruned, steady
from memtune.wire.report import MOST_STEPS, Device, MeasuredStep
from memtune.words import Word
from memtune_runner.rank import probe_agreement, shared_store
from memtune_runner.rank.settings import Settings

DEFAULT_STEPS = 10
# A dynamic loss scale starts at 2^16 or 2^32 and is halved at each skipped step; after so many, no scale fits.
MOST_SKIPPED_STEPS = 64
# The first step creates the optimizer's states: it is the slowest, and only later steps need as much memory.
_WARM_UP_STEPS = 1
# A probe that is this far through its time ends with the steps that it has: it still has to evaluate, save and report.
_LATE = 0.5


class ProbeFinished(BaseException):
    """Ends the script of a finished probe. A BaseException, so that ``except Exception`` does not catch it."""


class Enough(Word):
    """Why a probe needs no further step though its plan may win."""

    STEADY = "steady"
    LATE = "late"

    @property
    def words(self) -> str:
        """The reason in words."""
        return "the last two are alike" if self is Enough.STEADY else "half of its time is over"


def accumulation(settings: Settings) -> int:
    """Return the micro-batches per optimizer step in this run; a probe may shorten its plan's."""
    return shortened_accumulation(settings.plan) if settings.is_probe else settings.plan.accumulation


def effective_plan(settings: Settings) -> Plan:
    """Return the plan as this run executes it."""
    return replace(settings.plan, accumulation=accumulation(settings))


class Probe:
    """Decides when a probe is over. An integration that still evaluates and saves ends it by itself."""

    def __init__(self, steps: int, target: Target = NOTHING, world: int = 1, seconds: float = math.inf) -> None:
        self.world = world
        self._wanted_steps, self._target = steps, target
        self._late_at = time.monotonic() + seconds * _LATE
        self._seen: list[Step] = []
        self._measured: list[MeasuredStep] = []
        self.ended_early: Pruned | Enough | None = None
        self._deferred = False
        self._last_act: Callable[[], None] | None = None
        self._is_ending = False
        self._steps = self._skipped = 0
        self.evaluated = False  # since the last step
        self.has_enough = False

    @classmethod
    def of(cls, settings: Settings, world: int) -> Probe | None:
        """Return the probe of a run with ``world`` ranks; None for an attempt."""
        if not settings.is_probe:
            return None
        steps, seconds = settings.probe_steps or DEFAULT_STEPS, settings.probe_seconds or math.inf
        # On an emulated GPU one rank stands for all, and has no other to agree with.
        return cls(steps, settings.target, 1 if settings.device is Device.EMULATED else world, seconds)

    @property
    def pruned(self) -> Pruned | None:
        """Return why the plan can no longer win; None if it may."""
        return self.ended_early if isinstance(self.ended_early, Pruned) else None

    @property
    def measured_steps(self) -> tuple[MeasuredStep, ...]:
        """Return what the steps measured, downsampled to the room in a report, with the first and the last step."""
        last, room = len(self._measured) - 1, MOST_STEPS - 1
        places = range(last + 1) if last <= room else (round(place * last / room) for place in range(MOST_STEPS))
        return tuple(self._measured[place] for place in places)

    def defer(self) -> None:
        """Let an integration end the probe by calling ``finish``."""
        self._deferred = True

    def at_the_end(self, act: Callable[[], None]) -> None:
        """Register what an integration does after the last step, with the model in its final state."""
        self._last_act = act

    def stepped(self, steps: int, skipped: int) -> None:
        """Record the steps made and skipped so far."""
        self._steps, self._skipped = steps + skipped, skipped
        is_through = steps >= self._wanted_steps or skipped >= MOST_SKIPPED_STEPS
        self.has_enough = self.ended_early is not None or is_through

    def training_ends(self) -> None:
        """Let the probe end with this step, the last one that the training has."""
        self.has_enough = True

    def measured(self, seconds: float, tokens_per_second: float, device_bytes: int) -> None:
        """Record the last step's duration and throughput, 0 if unknown, and the peak bytes so far."""
        number = self._steps
        if number <= _WARM_UP_STEPS:
            return
        self._seen.append(Step(tokens_per_second, device_bytes, seconds))
        if seconds:
            self._measured.append(MeasuredStep(number, round(seconds, 6), device_bytes))
        # All ranks have to ask at the same steps, so nothing that one of them measured may decide whether they ask.
        may_have_enough = number - self._skipped >= STEADY_STEPS
        if may_have_enough and self.world > 1 and shared_store.of_all_ranks() is None:
            self._wanted_steps, self.has_enough = STEADY_STEPS, True  # ranks that cannot agree on more make the fewest
        if (any(self._target) or may_have_enough) and not self.has_enough:
            mine = pruned(self._target, self._seen) or (self._enough() if may_have_enough else None)
            reason = probe_agreement.on(number, mine, self.world)
            self.ended_early = _REASONS[reason] if reason else None
            self.has_enough = self.ended_early is not None

    def _enough(self) -> Enough | None:
        if steady(self._seen):
            return Enough.STEADY
        return Enough.LATE if time.monotonic() > self._late_at else None

    def forward_begins(self, is_evaluation: bool) -> None:
        """Raise ProbeFinished if the script goes on after the last step; one evaluation batch may still run.

        The probe ends here and not in the optimizer, so that a second optimizer, the scheduler and a save have had
        their turn.
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


_REASONS: dict[str, Pruned | Enough] = {str(each): each for each in (*Pruned, *Enough)}
_current: Probe | None = None


def begin(probe: Probe | None) -> None:
    """Make this process a probe, or none, from now on."""
    global _current
    _current = probe


def has_enough() -> bool:
    """Whether this process is a probe that needs no more steps."""
    return _current is not None and _current.has_enough
