"""What forbids a job's pods before the first one is created."""

from __future__ import annotations

import importlib.util

import pytest
from small_jobs import make_job

from memtune.api import reasons
from memtune_operator.local import backend as local
from memtune_operator.pods import preflight
from memtune_operator.pods.security_policy import Policy


def refused(monkeypatch: pytest.MonkeyPatch, installed: set[str], **tuning: str) -> str:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in installed or None)
    blocker = preflight.check(make_job(tuning=tuning), Policy(), "runner:1").blocker
    assert blocker is None or blocker.reason == reasons.SAMPLER_MISSING
    return blocker.message if blocker else ""


def test_a_sampler_without_its_libraries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "spec.tuning.sampler: GP needs {0}, not installed beside the operator: build its image with --build-arg "
        "GP=true (under memtune run install {0}), or use MemTune, TPE or Random"
    )
    assert refused(monkeypatch, set(), sampler="GP") == said.format("torch and scipy")
    assert refused(monkeypatch, {"torch"}, sampler="GP") == said.format("scipy")
    assert refused(monkeypatch, {"torch", "scipy"}, sampler="GP") == ""


@pytest.mark.parametrize("sampler", ["MemTune", "TPE", "Random"])
def test_the_other_samplers_need_nothing(monkeypatch: pytest.MonkeyPatch, sampler: str) -> None:
    assert refused(monkeypatch, set(), sampler=sampler) == ""


def test_a_job_that_probes_nothing_needs_no_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch, set(), sampler="GP", mode="PredictOnly") == ""


def test_a_job_that_was_launched_needs_no_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    # A relaunch after an out-of-memory needs no sampler, so an operator that lost the library must not block it.
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    job = make_job(tuning={"sampler": "GP"})
    assert preflight.check(job, Policy(), "runner:1", has_attempts=True).blocker is None
    assert local.blocker_of(job) is not None
    assert local.blocker_of(job, has_attempts=True) is None
