"""Of several trainings that one script makes, only the first is saved and resumed."""

from __future__ import annotations

import sys

from memtune_runner.rank.settings import Settings


class FirstTraining:
    """The calls of a library's training loop in this process: only the saves of the first are resumed from.

    A checkpoint does not say which call it belongs to. A relaunched script makes its later trainings anew.
    """

    def __init__(self, settings: Settings, call: str) -> None:
        self._call = call
        self._saves_are_missed = settings.checkpoint_path is not None
        self._has_ended = False
        self.is_current = True

    def begins(self) -> None:
        """A call begins. What the script saves between two belongs to the one before."""
        self.is_current = not self._has_ended

    def ended(self) -> None:
        """A call that trained has returned."""
        self._has_ended = True

    def keeps_saves(self) -> bool:
        """Whether a save is resumed from; says so once if it is not."""
        if not self.is_current and self._saves_are_missed:
            self._saves_are_missed = False
            print(
                f"memtune: of several calls of {self._call} only the first resumes from its checkpoints: a relaunch "
                "makes the trainings after it anew; train each one in a job of its own to resume it as well",
                file=sys.stderr,
            )
        return self.is_current
