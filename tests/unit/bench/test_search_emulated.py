"""Tables of emulated memory: every plan was run, and some fit."""

from __future__ import annotations

import pytest
from emulated_pairs import read
from search_emulated import FILE, GRIDS, Grid


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.name)
def test_every_plan_was_emulated_and_memory_is_the_same_at_every_seed(grid: Grid) -> None:
    found = read(FILE)
    assert all(found[pair].reserved_bytes for pair in grid.pairs().values())
    table, other = grid.table(0), grid.table(1)
    assert any(table.fits(plan) for plan in table.possible)
    for plan, row in table.rows.items():
        assert row.device_bytes == other.rows[plan].device_bytes
        assert row.tokens_per_second != other.rows[plan].tokens_per_second
