"""Traces as files: round trips, and errors for files that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from small_traces import small_trace

from memtune.wire.trace import TraceError, dumps, loads


def test_a_trace_is_read_as_it_was_written() -> None:
    assert loads(dumps(small_trace())) == small_trace()


def damaged(**changes: Any) -> str:
    document = json.loads(dumps(small_trace()))
    document["programs"]["half"] |= changes.pop("half", {})
    return json.dumps(document | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this is no trace"),
        ("[1]", "this is no trace"),
        ("{}", "this is no trace"),
        (damaged(version=7), "version 7"),
        (damaged(programs=3), "damaged"),
        (damaged(half={"codes": "ad"}), "differ in length"),
        (damaged(half={"madeBy": ""}), "differ in length"),
        (damaged(parameters=[["w", 1]]), "damaged"),
    ],
)
def test_invalid_data_is_refused_as_no_trace(text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        loads(text)


def test_a_missing_program_names_those_that_are_there() -> None:
    trace = small_trace()
    with pytest.raises(TraceError, match="no program 'double', only half, autocast, full"):
        trace.program("double")
