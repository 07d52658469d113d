"""Which plan to probe next: expected improvement of the recalibrated predictor, times the probability of fitting.

A search carries everything that its answer rests on, so that an equal search has an equal answer and a sampler can be
rebuilt from it after every restart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from memtune.knowledge import Lesson, Model
from memtune.plan import Plan
from memtune.prediction import Interval
from memtune.space import THROUGHPUT, Candidate, divisors

# The sampler that chooses by expected improvement under the prediction.
MEMTUNE = "MemTune"
# A gain below this share is none, and after so many probes in a row without one the search is over.
_GAIN = 0.03
_PATIENCE = 3
# How far an interval's upper bound is from its middle, in standard deviations: the bound is that of 97.5%.
_BOUND = 1.96
# Below this chance of fitting, the next divisor down after an out-of-memory is no better guess than any other plan.
_LIKELY = 0.5


@dataclass(frozen=True)
class Trial:
    """A probe that was recorded: its plan, and what became of it.

    ``fits`` is None while it runs or if it told nothing, False after an out-of-memory or if it left too little headroom
    or had to retry; ``died`` tells the out-of-memory. ``score`` is what the objective maximises, as measured: tokens
    per second, or free bytes. ``lesson`` is what it taught of the memory. A plan that is not ``tried`` may be probed
    again: its probe was taken away, or never started.
    """

    number: int
    plan: Plan
    fits: bool | None = None
    died: bool = False
    score: float = 0.0
    lesson: Lesson | None = None
    is_running: bool = False
    tried: bool = True


@dataclass(frozen=True)
class Question:
    """What to probe next? ``candidates`` are the plans that may still be probed, predicted by the recalibrated model.

    No plan that was tried is among them. ``incumbent`` is the best score of a trial that fits, 0 if there is none yet.
    """

    candidates: tuple[Candidate, ...]
    trials: tuple[Trial, ...]
    usable_bytes: int
    headroom: float
    objective: str = THROUGHPUT
    incumbent: float = 0.0


@dataclass(frozen=True)
class SearchState:
    """How far a search is: what the trials taught of the job's plans, and the trials.

    ``seed`` differs between jobs and between the probes of a job, and is the same after a restart. ``sampler`` is what
    chooses the next plan.
    """

    model: Model
    trials: tuple[Trial, ...]
    seed: str = ""
    sampler: str = MEMTUNE

    @cached_property
    def question(self) -> Question:
        """What to choose the next probe from."""
        return Question(
            candidates=self.model.candidates({trial.plan for trial in self.trials if trial.tried}),
            trials=self.trials,
            usable_bytes=self.model.usable_bytes,
            headroom=self.model.headroom,
            objective=self.model.objective,
            incumbent=max((trial.score for trial in self.trials if trial.fits), default=0.0),
        )


# The answer is the plan of one of the candidates, or None if none of them is worth a probe.
Search = Callable[[SearchState], Plan | None]


def most_promising(state: SearchState) -> Plan | None:
    """The search that needs no library: the plan of the greatest expected improvement."""
    return expected_improvement(state.question)


def expected_improvement(question: Question) -> Plan | None:
    """The candidate that promises most: expected improvement times the probability of fitting.

    Right after an out-of-memory it is the same plan at the next smaller micro-batch, where that is likely to fit.
    """
    smaller = _next_divisor_down(question)
    if smaller:
        return smaller
    promises = [(promise(question, candidate), candidate.plan) for candidate in question.candidates]
    best, plan = max(promises, key=lambda each: each[0], default=(0.0, None))
    return plan if best > 0 else None


def promise(question: Question, candidate: Candidate) -> float:
    """Expected improvement over the incumbent, times the probability of fitting with headroom."""
    score = _score(question, candidate)
    spread = max((score.upper - score.lower) / (2 * _BOUND), 1e-9 * abs(score.expected), 1e-12)
    gain = score.expected - question.incumbent
    place = gain / spread
    improvement = gain * _below(place) + spread * math.exp(-place * place / 2) / math.sqrt(2 * math.pi)
    return max(improvement, 0.0) * probability_of_fitting(question, candidate)


def probability_of_fitting(question: Question, candidate: Candidate) -> float:
    """How likely a plan leaves its headroom free, by the interval of its prediction."""
    device = candidate.prediction.device
    spread = max((device.upper - device.expected) / _BOUND, 1.0)
    return _below((question.usable_bytes * (1 - question.headroom) - device.expected) / spread)


def enough(question: Question) -> str | None:
    """Why no further probe is worth its cost, as a person would say it; None while one is."""
    if not question.candidates:
        return "every plan that can fit was probed"
    if not question.incumbent:
        return None
    if _without_gain(question.trials) >= _PATIENCE:
        return f"{_PATIENCE} probes in a row gained less than {_GAIN:.0%}"
    if all(_score(question, candidate).upper <= question.incumbent for candidate in question.candidates):
        return "no plan left is predicted to be better than the best one measured"
    return None


def _without_gain(trials: tuple[Trial, ...]) -> int:
    """How many of the last probes brought nothing. Before the first that fits nothing can be gained upon."""
    best, idle = 0.0, 0
    for trial in trials:
        if trial.fits is None:
            continue
        if trial.fits and trial.score > best * (1 + _GAIN):
            idle = 0
        elif best:
            idle += 1
        best = max(best, trial.score) if trial.fits else best
    return idle


def _next_divisor_down(question: Question) -> Plan | None:
    told = [trial for trial in question.trials if trial.fits is not None]
    if not told or not told[-1].died:
        return None
    last = told[-1].plan
    sizes = [size for size in divisors(last.micro_batch * last.accumulation) if size < last.micro_batch]
    below = last.with_micro_batch(sizes[-1]) if sizes else None
    found = next((candidate for candidate in question.candidates if candidate.plan == below), None)
    return below if found and probability_of_fitting(question, found) >= _LIKELY else None


def _score(question: Question, candidate: Candidate) -> Interval:
    """What the objective maximises, as predicted."""
    if question.objective == THROUGHPUT:
        return candidate.prediction.tokens_per_second
    device, usable = candidate.prediction.device, question.usable_bytes
    return Interval(usable - device.upper, usable - device.expected, usable - device.lower)


def _below(place: float) -> float:
    """The share of a standard normal distribution that lies below."""
    return (1 + math.erf(place / math.sqrt(2))) / 2
