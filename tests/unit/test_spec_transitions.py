"""What may change in a job that runs: both halves of the table say the same."""

from __future__ import annotations

from typing import Any

import pytest
from spec_rules import FACTS, POD, defaulted, holds, job, spec

from memtune.spec import load_job
from memtune.spec.transition import FIXED, TRANSITIONS, Transition, forbidden_changes

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


@pytest.mark.parametrize("field", FIXED)
def test_what_a_plan_was_measured_for_stays_as_it_is(field: str) -> None:
    old, new = spec(template={}), spec(template={}) | {field: OTHER[field]}
    for phase, refused in (("Pending", []), ("Probing", [f"spec.{field}"]), ("Running", [f"spec.{field}"])):
        status = {"phase": phase}
        found = forbidden_changes(load_job(job(old, **status)), load_job(job(new, **status)))
        assert [p.path for p in found] == refused
        for rule in (rule for rule in TRANSITIONS if rule.field == field):
            assert allowed(rule, old, new, status) is not bool(refused)
    assert forbidden_changes(load_job(job(old)), load_job(job(new))) == []


def allowed(rule: Transition, old: dict[str, Any], new: dict[str, Any], status: dict[str, Any]) -> bool:
    return holds(
        rule.cel,
        self={"spec": defaulted(new), "status": status},
        oldSelf={"spec": defaulted(old), "status": status},
    )


def test_what_steers_a_running_job_may_change() -> None:
    old, new = spec(), spec(suspend=True, activeDeadlineSeconds=5, tuning={"maxProbes": 3}, retry={"maxOomRetries": 9})
    status = {"phase": "Running"}
    assert forbidden_changes(load_job(job(old, **status)), load_job(job(new, **status))) == []
    assert all(allowed(rule, old, new, status) for rule in TRANSITIONS)


def test_a_checkpoint_may_neither_come_nor_go_while_running() -> None:
    without, with_one = spec(), spec(checkpoint={"path": "/a"})
    (rule,) = (rule for rule in TRANSITIONS if rule.field == "checkpoint")
    assert not allowed(rule, without, with_one, {"phase": "Running"})
    assert not allowed(rule, with_one, without, {"phase": "Running"})
    assert allowed(rule, without, without, {"phase": "Running"})
