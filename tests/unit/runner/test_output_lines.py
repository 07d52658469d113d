"""A rank's output becomes lines: nothing is lost, nothing waits endlessly, nothing grows without bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtune_runner.launch.lines import LONGEST_LINE_BYTES, LineCutter, Tail


@pytest.mark.parametrize(
    ("chunks", "lines", "pending"),
    [
        ([b"a\nb\n"], [b"a", b"b"], None),
        ([b"a", b"b\n", b"c"], [b"ab"], b"c"),
        ([b"\n\n"], [b"", b""], None),
        ([b"windows\r", b"\n"], [b"windows"], None),
        ([b"\r10%", b"\r20%", b"\r30%"], [], b"30%"),
        ([b"10%\r20%\r", b"done\n"], [b"done"], None),
        ([b"10%\r"], [], b"10%"),
        ([b"\r"], [], None),
        ([b"\r50%", b"Traceback (most recent call last):\n"], [b"50%", b"Traceback (most recent call last):"], None),
        ([b"Traceback (most recent call last):\n"], [b"Traceback (most recent call last):"], None),
        ([b"\xff\x00\n"], [b"\xff\x00"], None),
        ([b"x" * LONGEST_LINE_BYTES + b"y"], [b"x" * LONGEST_LINE_BYTES], b"y"),
        ([b"x" * LONGEST_LINE_BYTES + b"y\n"], [b"x" * LONGEST_LINE_BYTES, b"y"], None),
        ([b"x" * 9_000 + b"\r" + b"y" * 9_000], [], b"y" * 9_000),
    ],
)
def test_output_is_split_into_lines_and_a_rest(chunks: list[bytes], lines: list[bytes], pending: bytes | None) -> None:
    cutter = LineCutter()
    assert [line for chunk in chunks for line in cutter.feed(chunk)] == lines
    assert cutter.pending() == pending
    assert cutter.pending() is None


@given(st.lists(st.binary(max_size=20).map(lambda each: each.replace(b"\r", b"")), max_size=8))
def test_without_carriage_returns_nothing_is_lost_however_it_is_chunked(chunks: list[bytes]) -> None:
    cutter = LineCutter()
    lines = [line for chunk in chunks for line in cutter.feed(chunk)]
    assert b"\n".join([*lines, cutter.pending() or b""]) == b"".join(chunks)


def test_the_tail_keeps_the_last_lines_and_reads_anything() -> None:
    tail = Tail()
    for number in range(300):
        tail.add(b"%d" % number)
    tail.add(b"\xff" + b"x" * 5_000)
    lines = tail.text().split("\n")
    assert (len(lines), lines[-2]) == (200, "299")
    assert lines[-1] == "\N{REPLACEMENT CHARACTER}" + "x" * 2_047
