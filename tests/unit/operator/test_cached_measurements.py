"""A namespace's memory of its jobs' runs: separate for everything they depend on, and readable with any content."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from small_jobs import make_job

from memtune.api.status import PeakBytes, ProbeStatus
from memtune.controller import Node, Observed
from memtune.memory.measured_overhead import JobOverhead, MeasuredOverhead
from memtune_operator import measurements
from memtune_operator.measurements import (
    cached_overhead,
    cached_probes,
    overhead_subject,
    probes_subject,
    product_of,
    with_overhead,
    with_probes,
)
from memtune_operator.pods.kinds import Manifest

GPU = {"gpuMemory": "8Gi", "gpuProduct": "NVIDIA-L4"}
OF = overhead_subject(make_job(resources=GPU), "mine:1", "NVIDIA-L4")
ONE, TWO = JobOverhead(5, "one", 2**29), JobOverhead(6, "two", 2**30)


def filled() -> Manifest:
    return with_overhead(with_overhead(None, "research", OF, ONE), "research", OF, TWO)


def test_measurements_are_recalled() -> None:
    kept = filled()
    assert cached_overhead(kept, OF) == MeasuredOverhead((ONE, TWO))
    assert cached_overhead(None, OF) == MeasuredOverhead()
    assert kept["metadata"] == {"name": "memtune-measurements", "namespace": "research"}


def test_entries_are_readable() -> None:
    (text,) = filled()["data"].values()
    found = json.loads(text)
    assert found["of"] == {
        "image": "mine:1", "device": "cuda", "gpuProduct": "NVIDIA-L4", "gpuResource": "nvidia.com/gpu", "world": 1,
    }  # fmt: skip
    assert found["jobs"][0] == {"job": "one", "outsideBytes": 2**29, "at": 5}


@pytest.mark.parametrize(
    "other",
    [
        overhead_subject(make_job(resources=GPU), "mine:2", "NVIDIA-L4"),
        overhead_subject(make_job(resources=GPU), "mine:1", "NVIDIA-T4"),
        overhead_subject(make_job(resources={**GPU, "gpusPerNode": 2}), "mine:1", "NVIDIA-L4"),
        overhead_subject(make_job(resources={**GPU, "device": "virtual"}), "mine:1", "NVIDIA-L4"),
        overhead_subject(make_job(resources={**GPU, "gpuResource": "nvidia.com/mig-1g.5gb"}), "mine:1", "NVIDIA-L4"),
    ],
    ids=["image", "product", "world", "device", "slice"],
)
def test_other_entries_are_not_taken_for_it(other: measurements.Subject) -> None:
    kept = with_overhead(filled(), "research", other, JobOverhead(7, "three", 1))
    assert cached_overhead(kept, OF) == MeasuredOverhead((ONE, TWO))
    assert cached_overhead(kept, other) == MeasuredOverhead((JobOverhead(7, "three", 1),))


def test_the_kind_that_was_measured_last_longest_ago_goes_when_there_is_no_room() -> None:
    kept: Any = None
    for number in range(70):
        kept = with_overhead(kept, "research", {**OF, "world": number}, JobOverhead(number, "one", 1))
    assert len(kept["data"]) == 64
    assert cached_overhead(kept, {**OF, "world": 5}) == MeasuredOverhead()
    assert cached_overhead(kept, {**OF, "world": 6}).newest_at == 6


@pytest.mark.parametrize(
    "text", [7, "{", "[]", "x" * 100_000, '{"version": 9}', '{"version": 1, "jobs": [{"at": -1}]}', "[" * 5000]
)
def test_garbage_is_reported_and_overwritten(text: Any, caplog: pytest.LogCaptureFixture) -> None:
    (key,) = filled()["data"]
    garbage = {"metadata": {"resourceVersion": "7"}, "data": {key: text}}
    with caplog.at_level(logging.WARNING):
        assert cached_overhead(garbage, OF) == MeasuredOverhead()
    assert bool(caplog.records) == (isinstance(text, str) and text.startswith('{"version'))
    new = with_overhead(garbage, "research", OF, ONE)
    assert cached_overhead(new, OF) == MeasuredOverhead((ONE,))
    assert new["metadata"] == {"resourceVersion": "7"}


@pytest.mark.parametrize("kept", [[], "text", 7, {"data": []}, {"data": None, "metadata": []}])
def test_a_file_that_holds_anything_is_as_if_it_were_not_there(kept: Any) -> None:
    assert cached_overhead(kept, OF) == MeasuredOverhead()
    assert cached_overhead(with_overhead(kept, "", OF, ONE), OF) == MeasuredOverhead((ONE,))


def test_an_image_of_any_length_leaves_the_entry_readable() -> None:
    """An entry that cannot be read back would be rewritten endlessly."""
    of = {**OF, "image": "x" * 100_000, "gpuProduct": "y" * 63}
    kept: Any = None
    for number in range(20):
        kept = with_overhead(kept, "research", of, JobOverhead(2**59 + number, f"{number:012}", 2**59))
    assert len(cached_overhead(kept, of).jobs) == 16


def test_the_product_is_the_one_that_every_run_is_kept_to() -> None:
    unnamed, nodes = make_job(resources={"gpuMemory": "8Gi"}), (Node("a", "NVIDIA-L4"),)
    assert product_of(make_job(resources=GPU), Observed(status={"gpuProduct": "B"}, nodes=nodes)) == "NVIDIA-L4"
    assert product_of(unnamed, Observed(status={"gpuProduct": "B"}, nodes=nodes)) == "B"
    assert product_of(unnamed, Observed(nodes=nodes)) == "NVIDIA-L4"
    assert product_of(unnamed, Observed(nodes=(*nodes, Node("b", "B")))) == product_of(unnamed, Observed()) == ""
    assert len(product_of(unnamed, Observed(status={"gpuProduct": ["x" * 1000]}))) == 63


def probe(number: int, **changes: Any) -> ProbeStatus:
    variables = {"verdict": "succeeded", "measured_by": "first", "torch": "2.9.1", "gpu_seconds": 60, **changes}
    peaks = PeakBytes(allocated=1, active=1, reserved=1, device=2**30, total=2**33)
    ended_at = f"2026-03-01T10:00:{number:02}Z"
    return ProbeStatus(
        name="first-probe-1",
        number=1,
        plan=f"bf16-z1-none-mb1x{number}",
        peak_bytes=peaks,
        ended_at=ended_at,
        **variables,
    )


SCRIPT = {"spec": {"containers": [{"name": "trainer", "image": "mine:1", "command": ["python", "train.py"]}]}}
PROBED = probes_subject(make_job(resources=GPU), "mine:1", "NVIDIA-L4")


def test_probes_are_recalled_beside_the_driver_overhead() -> None:
    kept = with_probes(filled(), "research", PROBED, [probe(1), probe(2)], at=7)
    assert [each.plan for each in cached_probes(kept, PROBED)] == ["bf16-z1-none-mb1x1", "bf16-z1-none-mb1x2"]
    assert cached_overhead(kept, OF) == MeasuredOverhead((ONE, TWO))
    assert cached_probes(filled(), PROBED) == ()
    newer = with_probes(kept, "research", PROBED, [probe(3)], at=8)
    assert [each.plan for each in cached_probes(newer, PROBED)] == ["bf16-z1-none-mb1x3"]


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"tuning": {"maxProbes": 3, "headroom": "9%", "space": {"precision": ["bf16"]}}}, True),
        ({"retry": {"maxOomRetries": 1}}, True),
        ({"resources": {**GPU, "gpuHourPrice": 2.5}}, True),
        ({"tuning": {"probeSteps": 7}}, False),
        ({"training": {"sequenceLength": 256}}, False),
        ({"integration": "hf-trainer", "template": SCRIPT}, False),
        ({"template": SCRIPT}, False),
    ],
)
def test_only_a_job_that_asks_the_same_finds_them(changes: dict[str, Any], is_same: bool) -> None:
    kept = with_probes(None, "research", PROBED, [probe(1)], at=7)
    if "training" in changes:
        changes = {
            "training": {**make_job().spec.training.model_dump(by_alias=True, mode="json"), **changes["training"]}
        }
    other = make_job(**{"resources": GPU, **changes})
    assert bool(cached_probes(kept, probes_subject(other, "mine:1", "NVIDIA-L4"))) == is_same
    assert not cached_probes(kept, probes_subject(other, "mine:2", "NVIDIA-L4"))
    assert not cached_probes(kept, probes_subject(other, "mine:1", "NVIDIA-T4"))


def test_the_oldest_probes_go_when_they_take_too_much_room() -> None:
    words = {"torch": "2" * 32, "driver": "5" * 16, "measured_by": "a" * 63, "phase": "optimizer-step"}
    sizes = dict.fromkeys(("demanded_bytes", "tokens_per_second", "allocator_retries"), 2**50)
    many = [probe(number, out_of_memory="activation", **words, **sizes) for number in range(1, 17)]
    kept = with_probes(None, "research", PROBED, many, at=7)
    found = cached_probes(kept, PROBED)
    assert 8 < len(found) < 16
    assert found[-1].plan == many[-1].plan
    assert all(len(text) <= 8192 for text in kept["data"].values())


@pytest.mark.parametrize("found", ["1", "[]", '{"probes": 1}', '{"probes": [{"plan": "<script>"}]}'])
def test_probes_that_no_operator_wrote_are_passed_over(found: str, caplog: pytest.LogCaptureFixture) -> None:
    kept = with_probes(None, "research", PROBED, [probe(1)], at=7)
    (key,) = kept["data"]
    with caplog.at_level(logging.WARNING):
        assert cached_probes({**kept, "data": {key: found}}, PROBED) == ()
    assert ("is passed over" in caplog.text) == found.startswith('{"')
