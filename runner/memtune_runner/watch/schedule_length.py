"""Compares the optimizer steps of a resumed training with the length of its learning-rate schedule.

In a loop of the script's own, only a schedule of transformers or diffusers says how many steps were asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any

from memtune_runner.rank.settings import Settings
from memtune_runner.watch.steps import StepCounter

_RESUMED = ("hf-trainer", "lightning")  # whose trainers resume from the checkpoint by themselves

_LENGTH = "num_training_steps"  # the name of the argument in both libraries


class ScheduleLength:
    """The schedules that the script makes, and how often they step."""

    def __init__(self, settings: Settings, counter: StepCounter) -> None:
        self._settings, self._counter = settings, counter
        self._lengths: list[int | None] = []  # None for one that does not say it
        self._stepped = 0

    def made(self, functions: object) -> None:
        """Record a schedule that multiplies the learning rate by functions, one or one for each group of weights."""
        each = functions[0] if isinstance(functions, (list, tuple)) and functions else functions
        self._lengths.append(_length_of(each) if callable(each) else None)

    def stepped(self) -> None:
        """Record a step of a schedule; each also makes one when it is made, before the optimizer's first."""
        self._stepped += self._counter.steps > 0

    @property
    def made_again(self) -> str:
        """Return that a resumed training made as many steps as its schedule has in all; empty if unknown.

        A schedule that accelerate has prepared makes a step for each rank. One that steps otherwise, such as in each
        micro-batch, does not count optimizer steps. Each of several may belong to its own training. One that is shorter
        than the earlier training covers the rest of the training, and one that accelerate has prepared for several
        ranks ends early if the script does not multiply its length.
        """
        settings, made = self._settings, self._counter.steps + self._counter.skipped
        if not settings.resumed_step or settings.is_probe or settings.integration in _RESUMED or not made:
            return ""
        if len(self._lengths) != 1 or (length := self._lengths[0]) is None or length == settings.resumed_step + made:
            return ""
        of_step = round(self._stepped / made)
        if of_step not in (1, settings.world if settings.integration == "accelerate" else 1):
            return ""
        if length // of_step != made or made < settings.resumed_step:
            return ""
        return (
            f"the resumed script made all {made:,} optimizer steps of its learning-rate schedule, after the "
            f"{settings.resumed_step:,} of its checkpoint: if that is the schedule of the whole training, let the "
            "script begin with step $MEMTUNE_RESUME_STEP, and with the epoch of that step"
        )


def _length_of(function: Callable[..., Any]) -> int | None:
    """Return the length that a schedule's function was made with; None if it has none."""
    length = None
    if isinstance(function, partial):
        length = function.keywords.get(_LENGTH)
    elif isinstance(function, FunctionType) and _LENGTH in function.__code__.co_freevars:
        with suppress(ValueError):  # it has no value yet
            length = (function.__closure__ or ())[function.__code__.co_freevars.index(_LENGTH)].cell_contents
    if isinstance(length, float) and length.is_integer():
        length = int(length)
    return length if isinstance(length, int) and length > 0 else None
