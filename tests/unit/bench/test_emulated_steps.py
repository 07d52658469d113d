"""The operations of published runs under bench/results, and what their steps take."""

from __future__ import annotations

import statistics

from emulated_steps import extended, is_emulated, scored, summary
from throughput import DATA, read_rows

from memtune.gpus.operations import Operation

ROWS = read_rows(DATA)


def test_published_throughputs_are_what_the_operations_of_their_steps_take() -> None:
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
