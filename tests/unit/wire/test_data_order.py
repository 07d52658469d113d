"""Data order: under any plans and interruptions, the same samples come at the same step."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtune.wire.data_order import batches, sample_at


@given(st.integers(1, 200), st.integers(0, 2**32), st.integers(0, 3))
@settings(max_examples=50)
def test_each_epoch_has_every_sample_once(length: int, seed: int, epoch: int) -> None:
    start = epoch * length
    assert sorted(sample_at(start + index, length, seed) for index in range(length)) == list(range(length))


@given(
    st.integers(1, 50),
    st.sampled_from([4, 8, 12]),
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 4])), min_size=1, max_size=5),
)
@settings(max_examples=50)
def test_interruptions_and_worlds_do_not_change_the_order(
    length: int, global_batch: int, parts: list[tuple[int, int]]
) -> None:
    """Each part is an attempt: a number of steps on a number of ranks."""
    seen: list[int] = []
    for steps, world in parts:
        ranks = [batches(length, global_batch, 7, len(seen), rank, world) for rank in range(world)]
        for _ in range(steps):
            seen += [sample for rank in ranks for sample in next(rank)]
    assert seen == [sample_at(position, length, 7) for position in range(len(seen))]


def test_epochs_differ_and_so_do_seeds() -> None:
    first, second = ([sample_at(epoch * 100 + index, 100, 0) for index in range(100)] for epoch in range(2))
    assert len({tuple(first), tuple(second), tuple(sample_at(index, 100, 1) for index in range(100))}) == 3
    # A shuffle that leaves most samples in place, or next to each other, would be none.
    assert sum(abs(after - before) > 1 for before, after in pairwise(first)) > 80


def test_a_data_set_may_be_smaller_than_a_step() -> None:
    assert [sorted(batch) for batch in islice(batches(2, 4, 0), 2)] == [[0, 0, 1, 1]] * 2


def test_data_without_an_order_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        next(batches(0, 4, 0))
    with pytest.raises(ValueError, match="cannot be divided among 3"):
        next(batches(8, 4, 0, world=3))
