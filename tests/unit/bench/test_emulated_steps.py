"""The operations of published runs under bench/results, and what their steps take."""

from __future__ import annotations

import statistics
from pathlib import Path

import emulated_steps
import pytest
from emulated_steps import choose, counted, extended, is_emulated, missed, scored, summary
from throughput import DATA, read_rows

from memtune.gpus.operations import Operation

ROWS = read_rows(DATA)


def test_published_throughputs_match_the_operations_of_their_steps() -> None:
    found = scored(ROWS)
    assert {one.row.id for one in found} == {row.id for row in ROWS if is_emulated(row)}
    for source in {one.row.source for one in found}:
        some = [one for one in found if one.row.source == source]
        assert statistics.median(abs(one.ratio - 1) for one in some) < 0.081, summary(some)
    assert statistics.median(abs(one.ratio - 1) for one in found) < 0.05, summary(found)


def test_each_layer_adds_the_same_and_an_operation_on_all_layers_grows() -> None:
    (row,) = (row for row in ROWS if row.id == "titan-01")  # of 32 layers
    head, layer = (Operation("product", "bf16", size, 0, 1, 1) for size in (10, 20))
    updates = [Operation("kernel", "", 0, 100 + 50 * layers) for layers in (2, 4)]
    found = extended(row, {head: 1, layer: 6, updates[0]: 1}, {head: 1, layer: 12, updates[1]: 1})
    assert (found[head], found[layer]) == (1, 96)
    assert sum(each.moved * times for each, times in found.items()) == 100 + 50 * 32


def test_a_source_that_is_left_out_takes_no_part_in_the_choice_and_the_others_weigh_the_same() -> None:
    assert missed({"one": [-0.1, 0.1, 0.1], "two": [0.3]}) == pytest.approx(0.2)
    assert missed({"one": [-0.1, 0.1, 0.1], "two": [0.3], "three": [2.0]}, "three") == pytest.approx(0.2)


def test_the_search_finds_the_shares_that_miss_least(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(emulated_steps, "_PRODUCT_SHARES", [0.88, 0.98])
    monkeypatch.setattr(emulated_steps, "_MEMORY_SHARES", [0.4, 0.5])
    choose(counted(ROWS))
    said = capsys.readouterr().out
    quoted = Path(emulated_steps.__file__).with_name("results").joinpath("throughput.md").read_text()
    # The shares that are best among all are among these.
    beginnings = ("none ", "pytorch/torchtune ", "none, as they are ", "medians ", "rows ", "all rows ")
    same = [line for line in said.splitlines() if line.startswith(beginnings)]
    assert len(same) == len(beginnings)
    assert all(f"\n{line}\n" in quoted for line in same)
