"""What may change in a running job, by the operator and by the CRD."""

from __future__ import annotations

from typing import Any

import pytest
from api_server_validation import broken_rules, with_defaults
from valid_spec import FACTS, POD, job, spec

from memtune.api import load_job
from memtune.api.crd import object_schema
from memtune.api.immutable_fields import FIXED
from memtune.api.rule import FORBIDDEN
from memtune.api.status import Status
from memtune.controller.records import changed_fields, fingerprints

OTHER: dict[str, Any] = {
    "model": {"architecture": FACTS | {"layers": 3}},
    "training": {"globalBatchSize": 48, "sequenceLength": 128},
    "resources": {"gpusPerNode": 2},
    "template": POD,
    "integration": "sdk",
    "launcher": "JobSet",
    "runner": {"python": "python3.12"},
    "checkpoint": {"path": "/elsewhere"},
}


def changed(old: dict[str, Any], new: dict[str, Any], phase: str = "Running") -> list[str]:
    """The fields that the operator refuses to see changed: it records them when the job starts."""
    fixed = () if phase == "Pending" else fingerprints(load_job(job(old)))
    return [f"spec.{name}" for name in changed_fields(load_job(job(new)), Status(fixed=fixed))]


def blamed_by_the_crd(old: dict[str, Any], new: dict[str, Any], status: dict[str, Any]) -> list[str]:
    schema = object_schema()
    before, after = (with_defaults(schema, job(made, **status)) for made in (old, new))
    return [broken.path for broken in broken_rules(schema, after, before) if broken.reason == FORBIDDEN]


@pytest.mark.parametrize("field", FIXED)
def test_the_inputs_of_a_measurement_cannot_change(field: str) -> None:
    old, new = spec(template={}), spec(template={}) | {field: OTHER[field]}
    for phase, refused in (("Pending", []), ("Probing", [f"spec.{field}"]), ("Running", [f"spec.{field}"])):
        status = {"phase": phase}
        assert changed(old, new, phase) == refused
        assert blamed_by_the_crd(old, new, status) == refused


def test_fields_that_steer_a_running_job_may_change() -> None:
    old, new = spec(), spec(suspend=True, activeDeadlineSeconds=5, tuning={"maxProbes": 3}, retry={"maxOomRetries": 9})
    status = {"phase": "Running"}
    assert changed(old, new) == []
    assert blamed_by_the_crd(old, new, status) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [({}, {"gpuHourPrice": 2}), ({"gpuHourPrice": 2}, {"gpuHourPrice": 3}), ({"gpuHourPrice": 2}, {})],
)
def test_a_price_may_come_change_and_go_while_running(before: dict[str, Any], after: dict[str, Any]) -> None:
    old, new = spec(resources=before), spec(resources=after)
    status = {"phase": "Running"}
    assert changed(old, new) == []
    assert blamed_by_the_crd(old, new, status) == []


@pytest.mark.parametrize(
    "other",
    [
        {"nodes": 2},
        {"gpuMemory": "80Gi"},
        {"memoryShare": "50%"},
        {"gpuProduct": "NVIDIA-L4"},
        {"gpuResource": "amd.com/gpu"},
        {"nvmePath": "/mnt/nvme"},
    ],
)
def test_only_the_price_in_resources_may_change(other: dict[str, Any]) -> None:
    status = {"phase": "Running"}
    for before, after in ((other, {"gpuHourPrice": 2}), ({}, {**other, "gpuHourPrice": 2})):
        old, new = spec(resources=before), spec(resources=after)
        assert changed(old, new) == blamed_by_the_crd(old, new, status) == ["spec.resources"]


def test_a_checkpoint_may_neither_come_nor_go_while_running() -> None:
    without, with_one = spec(), spec(checkpoint={"path": "/a"})
    running = {"phase": "Running"}
    assert blamed_by_the_crd(without, with_one, running) == ["spec.checkpoint"]
    assert blamed_by_the_crd(with_one, without, running) == ["spec.checkpoint"]
    assert blamed_by_the_crd(without, without, running) == []
