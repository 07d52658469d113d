"""Memory values in the unit of the whole that they are part of."""

from __future__ import annotations

import pytest

from memtune.units import GIB, MIB, amount, gib, over, parse_bytes


@pytest.mark.parametrize(
    ("used_bytes", "usable_bytes", "shown"),
    [
        (71.2 * GIB, 79.6 * GIB, "71.2/79.6Gi"),
        (512 * MIB, GIB, "0.5/1.0Gi"),
        (168 * MIB, 256 * MIB, "168/256Mi"),
        (1034 * GIB, 79.6 * GIB, "1034.0/79.6Gi"),
    ],
)
def test_memory_is_shown_over_the_total(used_bytes: float, usable_bytes: float, shown: str) -> None:
    assert over(used_bytes, usable_bytes) == shown


def test_more_digits_than_a_number_can_have_are_no_quantity() -> None:
    with pytest.raises(ValueError, match="is not a quantity of memory"):
        parse_bytes("9" * 5000)


def test_a_sentence_has_its_thousands_apart() -> None:
    assert gib(1034 * GIB) == amount(1034 * GIB, GIB) == "1,034.0 GiB"
    assert amount(1010 * MIB, 1020 * MIB) == "1,010 MiB"
