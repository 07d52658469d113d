"""Which plan to probe next: expected improvement of the recalibrated predictor, times the probability of fitting.

The question carries everything that the answer rests on, so that an equal question has an equal answer and a sampler
can be rebuilt from it after every restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memtune.plan import Plan
from memtune.space import THROUGHPUT, Candidate


@dataclass(frozen=True)
class Trial:
    """A probe that was recorded: its plan, and what became of it.

    ``fits`` is None while it runs or if it told nothing, False after an out-of-memory or if it left too little headroom
    or had to retry. ``score`` is what the objective maximises, as measured: tokens per second, or free bytes.
    """

    number: int
    plan: Plan
    fits: bool | None = None
    score: float = 0.0


@dataclass(frozen=True)
class Question:
    """What to probe next? ``candidates`` are the plans that may still be probed, predicted by the recalibrated model.

    Nothing in ``trials`` is among them any more. ``seed`` is different for each job and each probe, equal after a
    restart. ``incumbent`` is the best score of a trial that fits, 0 if there is none yet.
    """

    candidates: tuple[Candidate, ...]
    trials: tuple[Trial, ...]
    usable_bytes: int
    headroom: float
    objective: str = THROUGHPUT
    incumbent: float = 0.0
    seed: str = ""


# The answer is the plan of one of the candidates, or None if none of them is worth a probe.
Search = Callable[[Question], Plan | None]
