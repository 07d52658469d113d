"""The total samples of a library's training, from its steps and the length of its data."""

from __future__ import annotations

from memtune_runner.rank.training_length import Epoch, LibraryLength, Training

EPOCH = Epoch(steps=3, samples=21)  # of at most 8 a step


def test_the_last_step_of_an_epoch_has_the_remaining_batches() -> None:
    training = Training(6, 0, lambda: 0, 8, EPOCH)
    assert [training.samples_after(steps) for steps in range(7)] == [0, 8, 16, 21, 29, 37, 42]


def test_several_trainings_add_up_and_the_resumed_one_has_some_behind_it() -> None:
    length = LibraryLength()
    assert (length.resumed_samples, length.total_samples(0)) == (None, None)
    length.begins(Training(6, 4, lambda: 6, 8, EPOCH))
    length.begins(Training(9, 0, lambda: 0, 8, EPOCH))
    assert (length.resumed_samples, length.total_samples(50)) == (29, 42 + 63)


def test_the_missing_steps_of_a_stream_are_known() -> None:
    length = LibraryLength()
    length.begins(Training(6, 0, lambda: 4, 8, None))
    assert length.total_samples(30) == 30 + 2 * 8
