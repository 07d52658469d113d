"""The length of a learning-rate schedule against the steps of a resumed training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from memtune.plans.plan import Plan
from memtune.wire.run import RunKind
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.schedule_length import ScheduleLength
from memtune_runner.watch.steps import StepCounter

SETTINGS = Settings(Plan.parse("fp32-ddp-none-mb4x2"), RunKind.TRAIN, "env", 8, 32, resume_samples=16)


def linear(step: int, *, num_training_steps: int) -> float:
    return 1 - step / num_training_steps


def closure(num_training_steps: float) -> Any:
    return lambda step: 1 - step / num_training_steps


class Callable:
    """A schedule that is neither a function nor made of one."""

    num_training_steps = 6

    def __call__(self, step: int) -> float:
        return 1 / (step + 1)


def told(settings: Settings, functions: list[Any], made: int, of_step: float) -> str:
    counter = StepCounter()
    schedule = ScheduleLength(settings, counter)
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
        ([closure(6.0)], 6, 1, True),  # steps of an epoch, divided by the accumulation
        ([closure(6)], 4, 1, False),
        ([closure(6)], 7, 1, False),  # a learning rate that falls for a part of the training
        ([closure(6.5)], 6, 1, False),
        ([closure(2)], 6, 1 / 3, False),  # a step for each epoch
        ([closure(6), closure(6)], 6, 1, False),  # each may be of a training of its own
        ([closure(6), lambda step: 1 / (step + 1)], 6, 1, False),
        ([closure(6), None], 6, 1, False),  # no function makes it
        ([lambda step: 1 / (step + 1)], 6, 1, False),
        ([Callable()], 6, 1, False),
        ([float], 6, 1, False),
    ],
)
def test_a_resumed_training_that_repeats_its_whole_schedule_is_reported(
    functions: list[Any], made: int, of_step: float, is_told: bool
) -> None:
    text = told(SETTINGS, functions, made, of_step)
    assert text.startswith("the resumed script made all 6 optimizer steps") is is_told, text


def test_a_scheduler_prepared_by_accelerate_steps_for_each_rank() -> None:
    on_two = replace(SETTINGS, integration="accelerate", gpus_per_node=2, global_batch=16)
    assert told(on_two, [closure(12)], 6, 2).startswith("the resumed script made all 6 optimizer steps")
    assert told(on_two, [closure(12)], 3, 2) == ""
    on_two = replace(on_two, resume_samples=48)
    assert told(on_two, [closure(6)], 3, 2) == "", "a schedule of 6 steps, not multiplied by the ranks, ends after 3"


def test_a_schedule_shorter_than_the_trained_steps_is_of_the_rest() -> None:
    assert told(replace(SETTINGS, resume_samples=72), [closure(6)], 6, 1) == ""


@pytest.mark.parametrize("integration", ["hf-trainer", "lightning"])
def test_a_library_that_resumes_by_itself_may_make_a_whole_schedule_in_another_training(integration: str) -> None:
    assert told(replace(SETTINGS, integration=integration), [closure(6)], 6, 1) == ""


def test_a_training_from_its_start_is_free_to_make_more_steps_than_its_schedule() -> None:
    assert told(replace(SETTINGS, resume_samples=0), [closure(6)], 9, 1) == ""
