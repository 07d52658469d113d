"""Which micro-batches a plan's picture shows."""

from __future__ import annotations

from itertools import pairwise

from memtune_cli.views.plot import spread


def test_few_sizes_are_all_shown() -> None:
    assert spread({1, 2, 4, 8, 16, 32}, 4, 8) == [1, 2, 4, 8, 16, 32]
    assert spread([7], 7, 8) == [7]
    for factor in (2, 3, 5, 6, 7, 10):
        sizes = [factor**power for power in range(9)]
        assert spread(sizes, sizes[4], 8) == sizes


def test_the_plot_shows_distinct_sizes_and_the_chosen_plan() -> None:
    shown = spread(range(1, 1001), 37, 8)
    assert 37 in shown
    assert 6 <= len(shown) <= 9
    assert all(later >= earlier * 1000 ** (1 / 8) / 1.001 for earlier, later in pairwise(shown))
