"""What a namespace remembers of its jobs' runs: apart for whatever they depend on, and readable whatever is in it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from small_jobs import make_job

from memtune.decide import Node, Observed
from memtune.remembered import JobOutside, Remembered
from memtune_operator import kept_measurements
from memtune_operator.kept_measurements import product_of, recall, remembering, subject
from memtune_operator.wrapping import Manifest

GPU = {"gpuMemory": "8Gi", "gpuProduct": "NVIDIA-L4"}
OF = subject(make_job(resources=GPU), "mine:1", "NVIDIA-L4")
ONE, TWO = JobOutside(5, "one", 2**29), JobOutside(6, "two", 2**30)


def filled() -> Manifest:
    return remembering(remembering(None, "research", OF, ONE), "research", OF, TWO)


def test_what_was_learned_is_recalled() -> None:
    kept = filled()
    assert recall(kept, OF) == Remembered((ONE, TWO))
    assert recall(None, OF) == Remembered()
    assert kept["metadata"] == {"name": "memtune-measurements", "namespace": "research"}


def test_a_person_can_read_what_it_is_about() -> None:
    (text,) = filled()["data"].values()
    found = json.loads(text)
    assert found["of"] == {
        "image": "mine:1", "device": "cuda", "gpuProduct": "NVIDIA-L4", "gpuResource": "nvidia.com/gpu", "world": 1,
    }  # fmt: skip
    assert found["jobs"][0] == {"job": "one", "outsideBytes": 2**29, "at": 5}


@pytest.mark.parametrize(
    "other",
    [
        subject(make_job(resources=GPU), "mine:2", "NVIDIA-L4"),
        subject(make_job(resources=GPU), "mine:1", "NVIDIA-T4"),
        subject(make_job(resources={**GPU, "gpusPerNode": 2}), "mine:1", "NVIDIA-L4"),
        subject(make_job(resources={**GPU, "device": "virtual"}), "mine:1", "NVIDIA-L4"),
        subject(make_job(resources={**GPU, "gpuResource": "nvidia.com/mig-1g.5gb"}), "mine:1", "NVIDIA-L4"),
    ],
    ids=["image", "product", "world", "device", "slice"],
)
def test_nothing_else_is_taken_for_it(other: kept_measurements.Subject) -> None:
    kept = remembering(filled(), "research", other, JobOutside(7, "three", 1))
    assert recall(kept, OF) == Remembered((ONE, TWO))
    assert recall(kept, other) == Remembered((JobOutside(7, "three", 1),))


def test_the_kind_that_was_measured_last_longest_ago_goes_when_there_is_no_room() -> None:
    kept: Any = None
    for number in range(70):
        kept = remembering(kept, "research", {**OF, "world": number}, JobOutside(number, "one", 1))
    assert len(kept["data"]) == 64
    assert recall(kept, {**OF, "world": 5}) == Remembered()
    assert recall(kept, {**OF, "world": 6}).newest_at == 6


@pytest.mark.parametrize(
    "text", [7, "{", "[]", "x" * 100_000, '{"version": 9}', '{"version": 1, "jobs": [{"at": -1}]}', "[" * 5000]
)
def test_garbage_is_nothing_is_said_and_is_written_over(text: Any, caplog: pytest.LogCaptureFixture) -> None:
    (key,) = filled()["data"]
    garbage = {"metadata": {"resourceVersion": "7"}, "data": {key: text}}
    with caplog.at_level(logging.WARNING):
        assert recall(garbage, OF) == Remembered()
    assert bool(caplog.records) == (isinstance(text, str) and text.startswith('{"version'))
    new = remembering(garbage, "research", OF, ONE)
    assert recall(new, OF) == Remembered((ONE,))
    assert new["metadata"] == {"resourceVersion": "7"}


@pytest.mark.parametrize("kept", [[], "text", 7, {"data": []}, {"data": None, "metadata": []}])
def test_a_file_that_holds_anything_is_as_if_it_were_not_there(kept: Any) -> None:
    assert recall(kept, OF) == Remembered()
    assert recall(remembering(kept, "", OF, ONE), OF) == Remembered((ONE,))


def test_an_image_of_any_length_leaves_the_entry_readable() -> None:
    """An entry that cannot be read again would be written for ever."""
    of = {**OF, "image": "x" * 100_000, "gpuProduct": "y" * 63}
    kept: Any = None
    for number in range(20):
        kept = remembering(kept, "research", of, JobOutside(2**59 + number, f"{number:012}", 2**59))
    assert len(recall(kept, of).jobs) == 16


def test_the_product_is_the_one_that_every_run_is_kept_to() -> None:
    unnamed, nodes = make_job(resources={"gpuMemory": "8Gi"}), (Node("a", "NVIDIA-L4"),)
    assert product_of(make_job(resources=GPU), Observed(status={"gpuProduct": "B"}, nodes=nodes)) == "NVIDIA-L4"
    assert product_of(unnamed, Observed(status={"gpuProduct": "B"}, nodes=nodes)) == "B"
    assert product_of(unnamed, Observed(nodes=nodes)) == "NVIDIA-L4"
    assert product_of(unnamed, Observed(nodes=(*nodes, Node("b", "B")))) == product_of(unnamed, Observed()) == ""
    assert len(product_of(unnamed, Observed(status={"gpuProduct": ["x" * 1000]}))) == 63
