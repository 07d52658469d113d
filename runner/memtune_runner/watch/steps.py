"""Counts optimizer steps under any engine. Pure: called by hooks and by tests."""

from __future__ import annotations


class StepCounter:
    """Counts optimizer steps, and separately those that a loss scaler skipped.

    An optimizer's ``step`` may be called several times per step: for two optimizers, for parameter groups, or by
    DeepSpeed for each sub-group and once at startup. So at most one step counts between two backward passes, and
    DeepSpeed's own count is used where there is one.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.skipped = 0
        self.backward_passes = 0
        self._backward_came = False
        self._last_was_skipped = False

    def backward_began(self) -> None:
        """Record the start of a backward pass; the next optimizer step is a new one. Some optimizers step within it."""
        self.backward_passes += 1
        self._backward_came = True

    def optimizer_stepped(self, skipped: bool = False) -> bool:
        """Record an optimizer's step, or that its loss scaler skipped it; return whether it is a new step."""
        if self._backward_came:
            self._backward_came = False
            self._count(skipped)
            return True
        if self._last_was_skipped and not skipped:
            # The first of several optimizers was skipped but not this one: the weights have changed.
            self.skipped -= 1
            self._count(False)
        return False

    def engine_stepped(self, steps: int, skipped: int) -> bool:
        """Record the step of an engine with its own count; return whether it made or skipped any."""
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
