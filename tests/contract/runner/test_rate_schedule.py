"""The length of a learning-rate schedule against the steps of a resumed training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from memtune.plans.plan import Plan
from memtune.wire.run import RunKind
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.rate_schedule import RateSchedule
from memtune_runner.watch.steps import StepCounter

SETTINGS = Settings(Plan.parse("fp32-ddp-none-mb4x2"), RunKind.TRAIN, "env", 8, 32, resume_samples=16)


def linear(step: int, *, num_training_steps: int) -> float:
    return 1 - step / num_training_steps


def closure(num_training_steps: int) -> Any:
    return lambda step: 1 - step / num_training_steps


class Callable:
    """A schedule that is neither a function nor made of one."""

    num_training_steps = 6

    def __call__(self, step: int) -> float:
        return 1 / (step + 1)


def told(settings: Settings, functions: list[Any], made: int, of_step: float) -> str:
    counter = StepCounter()
    schedule = RateSchedule(settings, counter)
    for each in functions:
        schedule.made(each)
        schedule.stepped()
    counter.steps = made
    for _ in range(int(made * of_step)):
        schedule.stepped()
    return schedule.made_again


@pytest.mark.parametrize(
    ("functions", "made", "of_step", "is_told"),
    [
        ([partial(linear, num_training_steps=6)], 6, 1, True),
        ([closure(6)], 6, 1, True),
        ([[closure(6), closure(6)]], 6, 1, True),  # of two groups of weights
        ([closure(12)], 6, 2, False),  # a step for each micro-batch
        ([closure(6)], 4, 1, False),
        ([closure(2)], 6, 1 / 3, False),  # a step for each epoch
        ([closure(6), closure(6)], 6, 1, False),  # each may be of a training of its own
        ([lambda step: 1 / (step + 1)], 6, 1, False),
        ([Callable()], 6, 1, False),
        ([float], 6, 1, False),
    ],
)
def test_a_resumed_training_that_makes_all_of_its_schedule_is_told(
    functions: list[Any], made: int, of_step: float, is_told: bool
) -> None:
    text = told(SETTINGS, functions, made, of_step)
    assert text.startswith("the resumed script made all 6 optimizer steps") is is_told, text


def test_what_accelerate_has_prepared_steps_for_each_rank() -> None:
    on_two = replace(SETTINGS, integration="accelerate", gpus_per_node=2, global_batch=16)
    assert told(on_two, [closure(12)], 6, 2).startswith("the resumed script made all 6 optimizer steps")
    assert told(on_two, [closure(12)], 3, 2) == ""


def test_a_training_from_its_start_is_free_to_make_more_steps_than_its_schedule() -> None:
    assert told(replace(SETTINGS, resume_samples=0), [closure(6)], 9, 1) == ""
