"""Chooses the next plan to probe, by expected improvement times the probability of fitting, and when to stop.

A search contains everything that its answer depends on, so that equal searches have equal answers and a sampler can be
rebuilt after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from memtune.memory.prediction import Interval
from memtune.planning.knowledge import Lesson, PlanKnowledge
from memtune.planning.pareto import Point, covered, expected_excess, expected_gain
from memtune.planning.space import BOTH, MEMORY, THROUGHPUT, Candidate, divisors
from memtune.plans.plan import Plan
from memtune.wire.probe_pruning import Target

# The sampler that maximises expected improvement under the prediction.
MEMTUNE = "MemTune"
# A smaller expected gain, as a share of the best measured, is not worth a probe: training would have to last a thousand
# times as long to pay for it.
_WORTH = 0.001
# A smaller relative gain counts as none; after this many probes in a row without gain the search ends.
_GAIN = 0.03
_PATIENCE = 3
# If the next divisor after an out-of-memory has a smaller chance of fitting, it is not preferred.
_LIKELY = 0.5


@dataclass(frozen=True)
class Trial:
    """A recorded probe: its plan, and how it ended.

    ``fits`` is None while it runs or if it measured nothing, False after an out-of-memory or if it left too little
    headroom or had to retry; ``died`` is the out-of-memory. ``score`` is what the objective maximises, as measured:
    tokens per second, or free bytes. With both objectives it is the former, and ``free_bytes`` the latter. ``lesson``
    is its lesson about memory. ``steps`` have the score after each of its steps, by their numbers; one that was
    ``pruned`` made fewer than it was to. A plan that is not ``tried`` may be probed again: its probe was disrupted,
    never started, or is ``stale``. Only the lesson counts of a stale one, and of one whose plan is ``closed``: an edit
    of the job removed it from the space.
    """

    number: int
    plan: Plan
    fits: bool | None = None
    died: bool = False
    score: float = 0.0
    lesson: Lesson | None = None
    is_running: bool = False
    tried: bool = True
    free_bytes: float = 0.0
    pruned: bool = False
    steps: tuple[tuple[int, float], ...] = ()
    stale: bool = False
    closed: bool = False

    @property
    def point(self) -> Point:
        """Both objectives."""
        return Point(self.score, self.free_bytes)


@dataclass(frozen=True)
class ProbeChoice:
    """Which plan to probe next. ``candidates`` are those left to probe, predicted by the recalibrated knowledge.

    They exclude tried plans. ``incumbent`` is the best score of a trial that fits, 0 if there is none yet.
    """

    candidates: tuple[Candidate, ...]
    trials: tuple[Trial, ...]
    usable_bytes: int
    headroom: float
    objective: str = THROUGHPUT
    incumbent: float = 0.0

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Both objectives of each plan that fits, as measured."""
        return tuple(trial.point for trial in self.trials if trial.fits)


@dataclass(frozen=True)
class SearchState:
    """The state of a search: the trials, and the knowledge that they gave.

    ``seed`` differs between jobs and between the probes of a job, and survives a restart. ``sampler`` chooses the next
    plan.
    """

    knowledge: PlanKnowledge
    trials: tuple[Trial, ...]
    seed: str = ""
    sampler: str = MEMTUNE

    @cached_property
    def choice(self) -> ProbeChoice:
        """The candidates for the next probe."""
        trials = tuple(trial for trial in self.trials if not (trial.stale or trial.closed))
        return ProbeChoice(
            candidates=self.knowledge.candidates({trial.plan for trial in trials if trial.tried}),
            trials=trials,
            usable_bytes=self.knowledge.usable_bytes,
            headroom=self.knowledge.headroom,
            objective=self.knowledge.objective,
            incumbent=max((trial.score for trial in trials if trial.fits), default=0.0),
        )


# Returns the plan of one of the candidates, or None if none is worth a probe.
Search = Callable[[SearchState], Plan | None]


def most_promising(state: SearchState) -> Plan | None:
    """The built-in search without Optuna: the plan with the greatest expected improvement."""
    return expected_improvement(state.choice)


def expected_improvement(choice: ProbeChoice) -> Plan | None:
    """The candidate with the greatest expected improvement times the probability of fitting.

    Right after an out-of-memory, the same plan at the next smaller micro-batch, if likely to fit.
    """
    smaller = _next_divisor_down(choice)
    if smaller:
        return smaller
    promises = [(promise(choice, candidate), candidate.plan) for candidate in choice.candidates]
    best, plan = max(promises, key=lambda each: each[0], default=(0.0, None))
    return plan if best > 0 else None


def promise(choice: ProbeChoice, candidate: Candidate) -> float:
    """Expected improvement over the measurements, times the probability of fitting with headroom."""
    if choice.objective == BOTH:
        improvement = expected_gain(choice.points, *_both(choice, candidate))
    else:
        improvement = expected_excess(_score(choice, candidate), choice.incumbent)
    return improvement * probability_of_fitting(choice, candidate)


def probability_of_fitting(choice: ProbeChoice, candidate: Candidate) -> float:
    """The probability that a probe of a plan keeps its headroom: its peak does, without emptying the cache."""
    return candidate.prediction.probe_probability(choice.usable_bytes, choice.headroom)


def target_of(knowledge: PlanKnowledge, tokens_per_second: float = 0.0, device_bytes: int = 0) -> Target:
    """The target of a probe: speed and peak of the best plan so far; before that, only the headroom.

    With both objectives a slower plan may still be on the front: then only memory counts.
    """
    most = int(knowledge.usable_bytes * (1 - knowledge.headroom))
    if knowledge.objective == MEMORY:
        return Target(device_bytes=min(device_bytes or most, most))
    return Target(int(tokens_per_second) if knowledge.objective == THROUGHPUT else 0, most)


def reason_to_stop(choice: ProbeChoice) -> str | None:
    """Why no further probe is worth its GPU-seconds, for people; None while one is."""
    if not choice.candidates:
        return "every plan that can fit was probed"
    if not choice.incumbent:
        return None
    if _without_gain(choice) >= _PATIENCE:
        return f"{_PATIENCE} probes in a row gained less than {_GAIN:.0%}"
    best = covered(choice.points) if choice.objective == BOTH else choice.incumbent
    if max(promise(choice, candidate) for candidate in choice.candidates) < _WORTH * best:
        measured = "those measured" if choice.objective == BOTH else "the best one measured"
        return f"no plan left is expected to gain {_WORTH:.1%} over {measured}"
    return None


def _without_gain(choice: ProbeChoice) -> int:
    """How many of the last probes brought no gain; 0 before the first that fits."""
    best, idle, fitting = 0.0, 0, list[Trial]()
    for trial in choice.trials:
        if trial.fits is None:
            continue
        if trial.fits:
            fitting.append(trial)
        now = _gained(choice.objective, fitting)
        if now > best * (1 + _GAIN):
            idle = 0
        elif best:
            idle += 1
        best = now
    return idle


def _gained(objective: str, fitting: list[Trial]) -> float:
    """The best score of the plans that fit, or with two objectives the area that they cover."""
    if objective == BOTH:
        return covered([trial.point for trial in fitting])
    return max((trial.score for trial in fitting), default=0.0)


def _next_divisor_down(choice: ProbeChoice) -> Plan | None:
    known = [trial for trial in choice.trials if trial.fits is not None]
    if not known or not known[-1].died:
        return None
    last = known[-1].plan
    sizes = [size for size in divisors(last.micro_batch * last.accumulation) if size < last.micro_batch]
    below = last.with_micro_batch(sizes[-1]) if sizes else None
    found = next((candidate for candidate in choice.candidates if candidate.plan == below), None)
    return below if found and probability_of_fitting(choice, found) >= _LIKELY else None


def _score(choice: ProbeChoice, candidate: Candidate) -> Interval:
    """The predicted objective."""
    speed, free = _both(choice, candidate)
    return speed if choice.objective == THROUGHPUT else free


def _both(choice: ProbeChoice, candidate: Candidate) -> tuple[Interval, Interval]:
    """Predicted tokens per second and free bytes."""
    device, usable = candidate.prediction.device, choice.usable_bytes
    free = Interval(usable - device.upper, usable - device.expected, usable - device.lower)
    return candidate.prediction.tokens_per_second, free
