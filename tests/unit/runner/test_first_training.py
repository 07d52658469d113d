"""Which of a script's Accelerators is the first training, and when two of them train in turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memtune.plans.plan import Plan
from memtune.wire.run import RunKind
from memtune_runner.integrations.first_training import FirstAccelerator
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.settings import Settings

SETTINGS = Settings(Plan.parse("fp32-ddp-none-mb1x8"), RunKind.TRAIN, "accelerate", 8, 32)
SAVED = replace(SETTINGS, checkpoint_path=Path("/checkpoints"))


class Accelerator:
    """One of a script."""


def prepared(settings: Settings = SAVED) -> tuple[FirstAccelerator, Accelerator, Accelerator]:
    """Return two Accelerators, each of which has prepared an optimizer."""
    first, accelerators = FirstAccelerator(settings), (Accelerator(), Accelerator())
    for each in accelerators:
        first.prepares(each, is_new=False)
    return first, *accelerators


def test_an_accelerator_that_is_thrown_away_untrained_is_not_the_first_training() -> None:
    for begins in (FirstAccelerator.trains, FirstAccelerator.loads):
        first, thrown_away, kept = prepared()
        assert first.is_of(kept), "it may load the checkpoint"
        begins(first, kept)
        assert (first.is_of(kept), first.is_of(thrown_away)) == (True, False)
        assert first.keeps_saves_of(kept)


def test_the_first_that_trains_or_loads_stays_the_first() -> None:
    for begins in (FirstAccelerator.trains, FirstAccelerator.loads):
        first, earlier, later = prepared()
        begins(first, earlier)
        begins(first, later)
        assert (first.is_of(earlier), first.is_of(later)) == (True, False)


def test_an_evaluation_is_not_the_first_training() -> None:
    first, _, _ = prepared()
    assert not first.is_of(Accelerator())


def test_an_accelerator_for_a_new_model_after_steps_is_not_the_first_training() -> None:
    first, later = FirstAccelerator(SAVED), Accelerator()
    first.prepares(Accelerator(), is_new=False)
    first.prepares(later, is_new=True)
    assert not first.is_of(later)


@pytest.mark.parametrize("kind", [RunKind.TRAIN, RunKind.PROBE])
def test_two_trainings_in_turn_are_refused_as_soon_as_the_first_goes_on(kind: RunKind) -> None:
    first, one, other = prepared(replace(SAVED, kind=kind))
    for each in (one, one, other, other):
        first.trains(each)
    with pytest.raises(BadInputError, match="train in turn"):
        first.trains(one)


def test_two_trainings_in_turn_need_no_save_where_the_job_has_none() -> None:
    first, one, other = prepared(SETTINGS)
    for each in (one, other, one, other):
        first.trains(each)


def test_a_training_within_the_first_one_before_it_trains_is_not_in_turn() -> None:
    first, one, other = prepared()
    first.loads(one)
    for each in (other, one, one):
        first.trains(each)
