"""Counts optimizer steps, whatever engine makes them. Pure: the hooks call it, tests do too."""

from __future__ import annotations


class StepCounter:
    """Counts optimizer steps, and apart from them those that a loss scaler skipped.

    An optimizer's ``step`` may be called several times for what is one step: by two optimizers, by parameter groups,
    by DeepSpeed for every sub-group and once more at its start. So at most one step is counted between two backward
    passes, and of DeepSpeed its own count is taken.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.skipped = 0
        self.backward_passes = 0
        self._backward_came = False
        self._last_was_skipped = False

    def backward_began(self) -> None:
        """A backward pass has begun; the next optimizer step is a new one. Some optimizers step within it."""
        self.backward_passes += 1
        self._backward_came = True

    def optimizer_stepped(self, skipped: bool = False) -> bool:
        """An optimizer has stepped, or its loss scaler refused; True where that makes a new step."""
        if self._backward_came:
            self._backward_came = False
            self._count(skipped)
            return True
        if self._last_was_skipped and not skipped:
            # Of several optimizers the first was skipped and this one was not: the weights have changed.
            self.skipped -= 1
            self._count(False)
        return False

    def engine_stepped(self, steps: int, skipped: int) -> bool:
        """An engine that counts itself has gone on by ``steps``, of which it skipped some; True where it has."""
        self.steps += steps - skipped
        self.skipped += skipped
        self._backward_came = False
        return steps > 0

    def _count(self, skipped: bool) -> None:
        self._last_was_skipped = skipped
        if skipped:
            self.skipped += 1
        else:
            self.steps += 1
