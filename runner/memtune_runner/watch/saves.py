"""The saves of the script: whether a probe has covered a save, and whether a relaunch would find any of it."""

from __future__ import annotations

from memtune.wire.report import Phase
from memtune_runner import checkpoints
from memtune_runner.rank import phases
from memtune_runner.rank.settings import Settings

# How a script saves a checkpoint that is resumed from.
_HOW = {
    "env": "call memtune_runner.checkpoint_saved after each save",
    "hf-trainer": "let the Trainer save below $MEMTUNE_CHECKPOINT_PATH",
    "accelerate": "call accelerator.save_state below $MEMTUNE_CHECKPOINT_PATH",
    "lightning": "save whole checkpoints by a ModelCheckpoint, or a state with its optimizer by fabric.save",
    "sdk": "call engine.save",
}


class Saves:
    """Counts the saves that ended."""

    def __init__(self, settings: Settings) -> None:
        self.is_covered = False  # by a run that had trained
        self._settings = settings
        self._seen = 0
        self._before_training: int | None = None
        self._trains_after_one = False

    def are_new(self, steps: int) -> bool:
        """Return whether anything was saved since the last call, by a run of this many steps."""
        ended = phases.times_ended(Phase.SAVE)
        is_new = ended > self._seen
        self.is_covered |= is_new and steps > 0
        self._seen = ended
        return is_new

    def stepped(self) -> None:
        """Handle an optimizer step: a save before it was not the last thing that the script did."""
        ended = phases.times_ended(Phase.SAVE)
        if self._before_training is None:
            self._before_training = ended
        self._trains_after_one |= ended > self._before_training

    @property
    def unusable(self) -> str:
        """That a relaunch finds nothing of what the script saved before it trained on; empty where it does."""
        settings = self._settings
        if settings.is_probe or settings.checkpoint_path is None or not self._trains_after_one:
            return ""
        if checkpoints.last_completed() is not None:
            return ""
        return (
            "the script has saved, but no checkpoint that a relaunch resumes from, so it would begin at "
            f"{settings.resume_samples} samples again: {_HOW[settings.integration]}"
        )
