"""A soak's judgement: what levels off, what does not."""

from __future__ import annotations

import pytest
from soak_memory import MIB, findings, still_grows, table, thirds


def mib(*values: float) -> list[int]:
    return [int(value * MIB) for value in values]


def test_thirds_are_medians() -> None:
    assert thirds([1, 2, 9, 4, 5, 6, 7, 7, 8, 30]) == (2, 5.5, 8)
    with pytest.raises(ValueError, match="2 samples have no thirds"):
        thirds([1, 2])


@pytest.mark.parametrize(
    ("values", "grows"),
    [
        (mib(100, 200, 300), True),
        # What is caught late in the run is a leak as well.
        (mib(100, 100, 130), True),
        # A cache that fills: it grew much at first, then less and less.
        (mib(100, 200, 240), False),
        # Within what a garbage collector leaves lying about.
        (mib(400, 400, 415), False),
        (mib(10, 10, 17), False),
        # A sawtooth of ever the same height.
        (mib(*[50, 100, 150] * 12), False),
    ],
)
def test_a_leak_is_told_from_what_levels_off(values: list[int], grows: bool) -> None:
    assert still_grows(values) is grows


def test_findings_name_the_part() -> None:
    series = {"etcd/1": mib(100, 200, 300), "kubelet/2": mib(80, 80, 80), "kubelet/3": mib(80, 80)}
    wrong = findings(series)
    assert [sentence.split()[0] for sentence in wrong] == ["etcd/1", "kubelet/3"]
    assert "2 of 3 times" in wrong[1]


def test_the_table_has_a_row_for_each_part() -> None:
    rows = table({"etcd/1": mib(1, 2, 3, 4, 5, 9), "kubelet/2": mib(1)}).splitlines()
    assert rows[2:] == ["| etcd/1 | 1 | 2 | 4 | 7 | 9 | 9 |", "| kubelet/2 | died | | | | | |"]
