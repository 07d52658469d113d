"""A trace in a pod's termination message: short, unchanged by a round trip, or an error if it is invalid."""

from __future__ import annotations

import base64
import json
import lzma
import random
from dataclasses import replace
from typing import Any

import pytest
from small_traces import small_trace

from memtune.memory.replay import Replayer
from memtune.plans.plan import Plan
from memtune.wire import trace_message
from memtune.wire.trace import Trace, TraceError
from memtune.wire.trace_message import LONGEST_BYTES, pack, unpack


def message(document: Any) -> str:
    plain = json.dumps(document).encode()
    return base64.b85encode(lzma.compress(plain, lzma.FORMAT_RAW, filters=trace_message._FILTERS)).decode()


def opened() -> list[Any]:
    plain = lzma.decompress(base64.b85decode(pack(small_trace())), lzma.FORMAT_RAW, filters=trace_message._FILTERS)
    document: list[Any] = json.loads(plain)
    return document


def damaged(place: int, value: Any) -> str:
    """Return the message with one column of its first program replaced."""
    document = opened()
    document[6]["half"][place] = value
    return message(document)


@pytest.mark.parametrize("plan", ["bf16-z2-sel-mb2x2", "bf16-ddp-full-mb4x1", "fp32-fsdp-none-mb1x2"])
def test_a_plan_takes_the_same_after_the_way_through_a_message(plan: str) -> None:
    packed = pack(small_trace())
    assert len(packed) < LONGEST_BYTES
    assert packed.isascii()
    wanted = Replayer(small_trace(), 1, 2).replay(Plan.parse(plan))
    assert Replayer(unpack(packed), 1, 2).replay(Plan.parse(plan)) == wanted


@pytest.mark.parametrize("mounted", [True, False])
def test_a_message_says_whether_a_volume_had_a_part_in_it(mounted: bool) -> None:
    assert unpack(pack(replace(small_trace(), mounted=mounted))).mounted is mounted


def test_equal_parts_cost_next_to_nothing() -> None:
    trace = small_trace()
    long = replace(trace, parameters=[*trace.parameters, *[trace.parameters[-1]] * 10_000])
    weights = {name: replace(each, weights=[4096] * 10_006) for name, each in trace.programs.items()}
    assert len(pack(replace(long, programs=weights))) < len(pack(trace)) + 100


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cut off"),
        ("no trace at all", "damaged"),
        (pack(small_trace())[:200], "damaged|cut off"),
        (message([7]), "version 7"),
        (message([1, *opened()[1:-1]]), "version 1"),
        (message({"a": 1}), "damaged"),
        (message([trace_message.VERSION, "Small"]), "damaged"),
        (message([*opened()[:-1], "yes"]), "where yes or no belongs"),
        (damaged(0, [ord("?")]), "numbers of events"),
        (damaged(1, [10**6]), "that there are not"),
        (damaged(2, [[5, 1]]), "repeats what it has not told"),
        (damaged(2, [1, [10**9, 1]]), "repeats what it has not told"),
        (damaged(2, [1.5]), "where a number belongs"),
        (damaged(2, [True]), "where a number belongs"),
        (damaged(3, [-(10**9)]), "bytes that there are not|where it needs|damaged"),
        (damaged(7, []), "where it needs"),
        (message(["[" * 10_000]), "damaged|version"),
    ],
)
def test_invalid_data_is_refused_as_no_trace(text: str, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        unpack(text)


def test_a_message_that_unpacks_to_too_much_is_not_unpacked() -> None:
    quick = [{**trace_message._FILTERS[0], "preset": 0}]
    bomb = lzma.compress(b" " * 17_000_000, lzma.FORMAT_RAW, filters=quick)
    with pytest.raises(TraceError, match="larger than any model"):
        unpack(base64.b85encode(bomb).decode())


def test_any_damage_is_reported_in_one_sentence() -> None:
    chance = random.Random(0)
    for _ in range(60):
        document = opened()
        column = document[6]["half"][chance.randrange(9)]
        if column:
            column[chance.randrange(len(column))] = chance.choice([-1, 0, 1, 97, 2**50, [3, 1], [1, 10**6], "x", None])
        try:
            trace = unpack(message(document))
        except TraceError:
            continue
        assert isinstance(trace, Trace)
