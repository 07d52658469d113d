"""A namespace's memory of factories: bounded, and readable with any content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memtune_operator.kubernetes import traces


def filled(count: int) -> dict[str, Any]:
    found: Any = None
    for number in range(count):
        found = traces.remembering(found, "research", f"key-{number}", f"trace-{number}", "sha256:1", float(number))
    assert isinstance(found, dict)
    return found


def test_a_trace_is_recalled_with_the_image_that_it_was_made_in() -> None:
    kept = filled(2)
    assert (traces.recall(kept, "key-1"), traces.image_of(kept, "key-1")) == ("trace-1", "sha256:1")
    assert traces.recall(kept, "key-7") == traces.recall(None, "key-1") == ""
    assert kept["metadata"] == {"name": "memtune-traces", "namespace": "research"}


def test_the_oldest_go_when_there_is_no_room() -> None:
    kept = filled(70)
    assert len(kept["data"]) == 64
    assert (traces.recall(kept, "key-5"), traces.recall(kept, "key-6")) == ("", "trace-6")


def test_an_object_that_is_there_keeps_its_metadata() -> None:
    there = {**filled(1), "metadata": {"name": traces.NAME, "namespace": "research", "resourceVersion": "7"}}
    assert traces.remembering(there, "research", "new", "t", "", 9.0)["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize("data", [None, [], "text", {"key": 1}, {"key": "{"}, {"key": "[]"}, {"key": "x" * 100_000}])
def test_garbage_is_ignored_and_removed(data: Any) -> None:
    there = {"metadata": {"name": traces.NAME, "namespace": "research"}, "data": data}
    assert traces.recall(there, "key") == traces.image_of(there, "key") == ""
    new = traces.remembering(there, "research", "other", "trace", "", 1.0)
    assert list(new["data"]) == ["other"]


def test_invalid_times_are_ignored() -> None:
    there = {"metadata": {}, "data": {"key": json.dumps({"trace": "t", "at": "yesterday"})}}
    assert traces.recall(traces.remembering(there, "research", "other", "trace", "", 1.0), "key") == "t"
