"""Tracks which of a script's several trainings is saved and resumed: only the first."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.settings import Settings


class FirstTraining:
    """The calls of a library's training loop in this process: only saves of the first are resumed from.

    A checkpoint does not record its call. A relaunched script repeats its later trainings.
    """

    def __init__(self, settings: Settings, call: str) -> None:
        self._call = call
        self._saves_are_missed = settings.checkpoint_path is not None
        self._has_ended = False
        self.is_current = True

    def begins(self) -> None:
        """Begin a call. Saves between two calls belong to the earlier one."""
        self.is_current = not self._has_ended

    def ended(self) -> None:
        """Record that a call that trained has returned."""
        self._has_ended = True

    def keeps_saves(self) -> bool:
        """Whether a save can be resumed from; logs once if it cannot."""
        return self._keeps(self.is_current)

    def _keeps(self, is_first: bool) -> bool:
        if not is_first and self._saves_are_missed:
            self._saves_are_missed = False
            print(
                f"memtune: of several calls of {self._call} only the first resumes from its checkpoints: a relaunch "
                "makes the trainings after it anew; train each one in a job of its own to resume it as well",
                file=sys.stderr,
            )
        return is_first


class FirstAccelerator(FirstTraining):
    """The same for loops with accelerate: the first training is that of the first Accelerator to train or to load.

    Those count that have prepared an optimizer. An Accelerator saves and loads what it has prepared, so no save of it
    holds what another one trains.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, "Accelerator.prepare with a new model and its optimizer")
        self._is_saved = settings.checkpoint_path is not None
        self._candidates: list[weakref.ref[Any]] = []  # also those that are gone: they were the first
        self._accelerator: weakref.ref[Any] | None = None  # the first, once it has trained or loaded
        self._has_trained = self._was_left = False

    def prepares(self, accelerator: Any, is_new: bool) -> None:
        """Record that an Accelerator prepares an optimizer; ``is_new`` after steps were made with other models."""
        if not is_new or not self._candidates:
            self._candidates.append(weakref.ref(accelerator))
        elif self.is_of(accelerator):
            self.ended()
            self.begins()

    def is_of(self, accelerator: Any) -> bool:
        """Whether this Accelerator is in the first training, or may begin it."""
        if self._accelerator is not None:
            return self.is_current and self._accelerator() is accelerator
        return self.is_current and (not self._candidates or self._is_candidate(accelerator))

    def loads(self, accelerator: Any) -> None:
        """Record that an Accelerator loads the checkpoint."""
        if self._accelerator is None and self._is_candidate(accelerator):
            self._accelerator = weakref.ref(accelerator)

    def trains(self, accelerator: Any) -> None:
        """Record that an Accelerator trains a batch; raise BadInputError if two that are saved do so in turn."""
        self.loads(accelerator)
        if not self.is_of(accelerator):
            self._was_left |= self._has_trained
            return
        if self._was_left and self._is_saved:
            raise BadInputError(
                "two Accelerators of the script train in turn, and a save holds what one of them has prepared, so that "
                "a relaunch could not go on: prepare all models and optimizers with one Accelerator, or leave "
                "spec.checkpoint out of the job"
            )
        self._has_trained = True

    def _is_candidate(self, accelerator: Any) -> bool:
        return any(each() is accelerator for each in self._candidates)

    def keeps_saves_of(self, accelerator: Any) -> bool:
        """Whether a save of this Accelerator can be resumed from; logs once if it cannot."""
        return self._keeps(self.is_of(accelerator))
