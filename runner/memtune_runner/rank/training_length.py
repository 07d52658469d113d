"""The total samples of a training, as far as the integration or the loop itself knows.

All numbers are this rank's share; the launcher and the operator sum over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_known: int | None = None


class TrainingLength:
    """The length of the training, as far as an integration knows it; the base class, for custom loops, has none."""

    discarded_samples = 0  # of steps that a library has undone, such as a learning-rate search
    is_known_at_end = False  # whether the total is known only after the script has succeeded
    is_over = False  # whether a library's call that trains has returned, and no other one has begun
    own_batch: int | None = None  # the script's own samples per step over all ranks, if the integration replaced them

    @property
    def unfinished(self) -> str:
        """Return why a script that exited with 0 has stopped too early; empty if it has not."""
        return ""

    @property
    def trained_twice(self) -> str:
        """Return that a resumed script seems to train again what its checkpoint had, and the remedy; else empty."""
        return ""

    @property
    def resumed_samples(self) -> int | None:
        """Return the samples of the checkpoint that the run resumed from; None if only the checkpoint knows."""
        return None

    def total_samples(self, _trained: int) -> int | None:
        """Return the samples of the whole training, given those trained so far; None if unknown."""
        return _known


class Epoch(NamedTuple):
    """One pass over the data."""

    steps: int
    samples: int


@dataclass(frozen=True)
class Training:
    """One training of a library's loop: how many optimizer steps of how many samples it makes.

    ``steps`` and ``resumed_steps`` count from the start of the training; ``made`` returns the steps made so far.
    ``epoch`` is None if the data has no known length.
    """

    steps: int
    resumed_steps: int
    made: Callable[[], int]
    samples_per_step: int
    epoch: Epoch | None

    def samples_after(self, steps: int) -> int:
        """Return the samples of the first ``steps``; the last step of an epoch may be smaller than the others."""
        if self.epoch is None:
            return steps * self.samples_per_step
        epochs, rest = divmod(steps, self.epoch.steps)
        return epochs * self.epoch.samples + rest * self.samples_per_step


class LibraryLength(TrainingLength):
    """The length of one or more consecutive trainings in a library's own loop."""

    def __init__(self) -> None:
        self._trainings: list[Training] = []

    def begins(self, training: Training) -> None:
        """Register that another training begins."""
        self._trainings.append(training)
        self.is_over = False

    @property
    def resumed_samples(self) -> int | None:
        """Return the samples of the checkpoint, from the library's own step count."""
        return sum(each.samples_after(each.resumed_steps) for each in self._trainings) if self._trainings else None

    def total_samples(self, trained: int) -> int | None:
        """Return the samples of all steps; for a stream, only the missing steps are known."""
        if not self._trainings:
            return None
        if all(each.epoch is not None for each in self._trainings):
            return sum(each.samples_after(each.steps) for each in self._trainings)
        return trained + sum(max(each.steps - each.made(), 0) * each.samples_per_step for each in self._trainings)


def tell(samples: int) -> None:
    """Let a loop declare how many samples it trains on this rank, counted from its first step."""
    global _known
    _known = samples


def reset() -> None:
    """Reset to the start of a run."""
    global _known
    _known = None
