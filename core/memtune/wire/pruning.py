"""Pruning: when a probe may end early because its plan can no longer win, or leaves too little memory free.

The runner, which ends its own probe, and the pruner of an Optuna study share this rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memtune.words import Word

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
    """What a probe has to beat: the best tokens per second, and a limit of device bytes; 0 for nothing to beat."""

    tokens_per_second: int = 0
    device_bytes: int = 0


NOTHING = Target()


class Step(NamedTuple):
    """A step after the first: tokens per second (0 if unknown), and the peak up to its end."""

    tokens_per_second: float
    device_bytes: int


def pruned(target: Target, steps: Sequence[Step]) -> Pruned | None:
    """Why a probe needs no further step; None while it does. A peak only rises, a speed may be noise."""
    if target.device_bytes and max((step.device_bytes for step in steps), default=0) > target.device_bytes:
        return Pruned.MEMORY
    speeds = [step.tokens_per_second for step in steps if step.tokens_per_second > 0]
    noise = _NOISE_OF_ONE if len(speeds) == 1 else _NOISE
    if speeds and max(speeds) * (1 + noise) < target.tokens_per_second:
        return Pruned.SPEED
    return None
