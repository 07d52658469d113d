"""How many samples a training has in all, as far as somebody knows: the integration, or the loop itself.

All numbers are the share of this rank. The launcher and the operator add up the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_told: int | None = None


class TrainingLength:
    """What an integration knows of the length of the training; nothing where the script's own loop decides."""

    discarded_samples = 0  # of steps that a library has undone, such as a search for a learning rate
    is_known_at_end = False  # whether the total shows only in what a script did that ended well
    own_batch: int | None = None  # the samples of a step by the script's own numbers, over all ranks, if replaced

    @property
    def unfinished(self) -> str:
        """Why a script that ended well has been cut short by mistake; empty if it has not."""
        return ""

    @property
    def resumed_samples(self) -> int | None:
        """The samples behind the checkpoint that the run resumed from; None where only the checkpoint tells."""
        return None

    def total_samples(self, _trained: int) -> int | None:
        """The samples of the whole training, of which so many are trained; None where nobody knows."""
        return _told


class Epoch(NamedTuple):
    """One pass over the data."""

    steps: int
    samples: int


@dataclass(frozen=True)
class Training:
    """One training that a library's loop makes: how many optimizer steps it has, and of how many samples.

    ``steps`` and ``resumed_steps`` count from the start of the training; ``made`` tells how many there are by now.
    ``epoch`` is None where the data does not tell its length.
    """

    steps: int
    resumed_steps: int
    made: Callable[[], int]
    samples_per_step: int
    epoch: Epoch | None

    def samples_after(self, steps: int) -> int:
        """The samples of the first ``steps``; the last step of an epoch may have fewer than the others."""
        if self.epoch is None:
            return steps * self.samples_per_step
        epochs, rest = divmod(steps, self.epoch.steps)
        return epochs * self.epoch.samples + rest * self.samples_per_step


class LibraryLength(TrainingLength):
    """The length of the trainings that a library's own loop makes, one after the other."""

    def __init__(self) -> None:
        self._trainings: list[Training] = []

    def begins(self, training: Training) -> None:
        """Another training begins."""
        self._trainings.append(training)

    @property
    def resumed_samples(self) -> int | None:
        """The samples behind the checkpoint, by the library's own count of steps."""
        return sum(each.samples_after(each.resumed_steps) for each in self._trainings) if self._trainings else None

    def total_samples(self, trained: int) -> int | None:
        """The samples of all steps. Of a stream only the steps that are missing are known."""
        if not self._trainings:
            return None
        if all(each.epoch is not None for each in self._trainings):
            return sum(each.samples_after(each.steps) for each in self._trainings)
        return trained + sum(max(each.steps - each.made(), 0) * each.samples_per_step for each in self._trainings)


def tell(samples: int) -> None:
    """Let a loop that knows its length tell how many samples it trains on this rank, from its first step on."""
    global _told
    _told = samples


def reset() -> None:
    """Back to the beginning of a run."""
    global _told
    _told = None
