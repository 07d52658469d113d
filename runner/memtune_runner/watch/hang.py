"""Detects hangs: limits, the rule, and the watchdog thread that reports one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from memtune.wire.report import Phase

GRACE_PHASES = frozenset({Phase.EVALUATION, Phase.SAVE})


@dataclass(frozen=True)
class HangLimits:
    """How much silence counts as a hang. The first step may compile kernels, fill caches and open connections.

    A script that has left its training loop may merge weights, upload them, or start another loop.
    """

    first_step_seconds: float = 1_800.0
    after_loop_seconds: float = 1_800.0
    least_seconds: float = 60.0
    steps: float = 10.0
    period_seconds: float = 5.0

    @property
    def grace_seconds(self) -> float:
        """How long one rank's evaluation or save excuses the others; a library may block its threads during a save."""
        return max(self.least_seconds, 3 * self.period_seconds)

    def of(self, step_seconds: float | None) -> float:
        """Return the longest silence that is not a hang, given the usual duration of a step."""
        if step_seconds is None:
            return self.first_step_seconds
        return max(self.least_seconds, self.steps * step_seconds)


class HangRule:
    """Detects that no optimizer step came for too long. Pure: the time is an argument.

    Before the first batch nothing counts as a hang, since preparing data may take hours.
    """

    def __init__(self, limits: HangLimits) -> None:
        self._limits = limits
        self._last_sign: float | None = None

    def note_progress(self, now: float) -> None:
        """Record that training has begun or a step has ended."""
        self._last_sign = now

    def silence(
        self,
        now: float,
        phase: Phase,
        step_seconds: float | None,
        is_grace_asked: bool = False,
        loop_is_left: Callable[[], bool] = lambda: False,
    ) -> float | None:
        """Return the seconds of silence if they are a hang, else None. Evaluating and saving count as activity.

        So does waiting for another rank that evaluates or saves, which often only rank 0 does. ``loop_is_left`` is
        called only if the silence would be a hang within the training loop.
        """
        if self._last_sign is None:
            return None
        if phase in GRACE_PHASES or is_grace_asked:
            self._last_sign = now
        silent_seconds = now - self._last_sign
        if silent_seconds <= self._limits.of(step_seconds):
            return None
        if silent_seconds <= self._limits.after_loop_seconds and loop_is_left():
            return None
        return silent_seconds


class Watchdog:
    """A thread that checks every few seconds whether the run hangs, and reports a hang once."""

    def __init__(
        self, silence: Callable[[float], float | None], hung: Callable[[float], None], period_seconds: float
    ) -> None:
        self._silence, self._hung, self._period_seconds = silence, hung, period_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memtune-watchdog", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop: what follows the run is no hang."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self._period_seconds):
            silent_seconds = self._silence(time.monotonic())
            if silent_seconds is not None:
                self._hung(silent_seconds)
                return
