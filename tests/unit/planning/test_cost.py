"""The cost of a million tokens, by numbers worked out by hand, and parsing and formatting of prices."""

from __future__ import annotations

import re

import pytest

from memtune.planning.cost import dollars, per_million_tokens, read_prices


def test_the_cost_is_the_price_of_all_gpus_for_as_long_as_a_million_tokens_take() -> None:
    # Eight GPUs at $2.50 are $20 an hour; a million tokens take 1000 s, which is $20 x 1000 / 3600.
    assert per_million_tokens(2.5, 8, 1000) == pytest.approx(5.55556)


def test_twice_the_speed_is_half_the_cost() -> None:
    assert per_million_tokens(3.6, 1, 2000) == pytest.approx(0.5)
    assert per_million_tokens(3.6, 1, 4000) == pytest.approx(0.25)


def test_without_a_speed_there_is_no_cost() -> None:
    assert per_million_tokens(2.5, 8, 0) is None


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (1234.5, "$1,234"),
        (100, "$100"),
        (99.99, "$99.99"),
        (2.5, "$2.50"),
        (1, "$1.00"),
        (0.9999, "$1.00"),
        (0.5, "$0.500"),
        (0.04166, "$0.0417"),
        (0.000123456, "$0.000123"),
        (0, "$0.00"),
    ],
)
def test_an_amount_is_shown_with_the_digits_that_matter(amount: float, shown: str) -> None:
    assert dollars(amount) == shown


def test_prices_are_read_with_blanks() -> None:
    assert read_prices(" h100-80gb=2.5, NVIDIA-L4 = 1 ") == {"h100-80gb": 2.5, "NVIDIA-L4": 1.0}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("2.5", "2.5 is no price; write NAME=DOLLARS, like h100-80gb=2.5"),
        ("", "'' is no price; write NAME=DOLLARS, like h100-80gb=2.5"),
        ("a=1,", "'a=1,' is no price; write NAME=DOLLARS, like h100-80gb=2.5"),
        ("a=", "a= is no price; write NAME=DOLLARS, like h100-80gb=2.5"),
        ("=2", "=2 is no price; write NAME=DOLLARS, like h100-80gb=2.5"),
        ("a=1,a=2", "a has two prices; leave one out"),
        ("a=cheap", "a=cheap: a price is a number above 0 and at most 1000000, like 2.5"),
        ("a=0", "a=0: a price is a number above 0 and at most 1000000, like 2.5"),
        ("a=-1", "a=-1: a price is a number above 0 and at most 1000000, like 2.5"),
        ("a=nan", "a=nan: a price is a number above 0 and at most 1000000, like 2.5"),
        ("a=inf", "a=inf: a price is a number above 0 and at most 1000000, like 2.5"),
        ("a=2e6", "a=2e6: a price is a number above 0 and at most 1000000, like 2.5"),
    ],
)
def test_an_invalid_price_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
        read_prices(text)
