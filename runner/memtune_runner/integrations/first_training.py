"""Tracks which of a script's several trainings is saved and resumed: only the first."""

from __future__ import annotations

import sys

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
        if not self.is_current and self._saves_are_missed:
            self._saves_are_missed = False
            print(
                f"memtune: of several calls of {self._call} only the first resumes from its checkpoints: a relaunch "
                "makes the trainings after it anew; train each one in a job of its own to resume it as well",
                file=sys.stderr,
            )
        return self.is_current
