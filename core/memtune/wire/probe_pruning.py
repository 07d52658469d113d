"""Early ends of probes: the plan can no longer win, it leaves too little memory free, or its steps are steady.

In the pod, `memtune_runner.rank.probe` applies the rules to each step and ends the probe. The pruner of an Optuna
study shares the rule of what can no longer win.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memtune.words import Word

# The steps of a probe whose steps are steady: one that warms up, and two that agree.
STEADY_STEPS = 3
# Two steps agree if one takes no more than this much longer; bench/pruning.py has how far they are from longer probes.
_AGREE = 0.02
# By how much the fastest of several steps may be slower than the plan really is; a single step may lose a third to late
# kernel compilation or a slow disk.
_NOISE = 0.1
_NOISE_OF_ONE = 0.5


class Pruned(Word):
    """Why a probe ended early."""

    SPEED = "speed"
    MEMORY = "memory"

    @property
    def words(self) -> str:
        """The reason in words."""
        return "too slow to win" if self is Pruned.SPEED else "too large to win"


class Target(NamedTuple):
    """The target of a probe: the best tokens per second, and a limit of device bytes; 0 for none."""

    tokens_per_second: int = 0
    device_bytes: int = 0


NOTHING = Target()


class Step(NamedTuple):
    """A step after the first: tokens per second (0 if unknown), the peak up to its end, and seconds (0 if unknown)."""

    tokens_per_second: float
    device_bytes: int
    seconds: float = 0.0


def pruned(target: Target, steps: Sequence[Step]) -> Pruned | None:
    """Why a probe needs no further step; None while it does. A peak only rises, a speed may be noise."""
    if target.device_bytes and max((step.device_bytes for step in steps), default=0) > target.device_bytes:
        return Pruned.MEMORY
    speeds = [step.tokens_per_second for step in steps if step.tokens_per_second > 0]
    noise = _NOISE_OF_ONE if len(speeds) == 1 else _NOISE
    if speeds and max(speeds) * (1 + noise) < target.tokens_per_second:
        return Pruned.SPEED
    return None


def steady(steps: Sequence[Step]) -> bool:
    """Whether the last two steps took the same time, and the last one no more memory than all before.

    Steps without a time agree: there is none to wait for where nothing is computed.
    """
    if len(steps) < 2:
        return False
    before, last = steps[-2:]
    shorter, longer = sorted((before.seconds, last.seconds))
    return longer <= shorter * (1 + _AGREE) and before.device_bytes == last.device_bytes
