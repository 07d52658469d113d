"""How many files a reader has to open to follow a decision."""

from __future__ import annotations

from dataclasses import replace

from decided import probed
from entered_files import entered
from small_jobs import make_job

import memtune
from memtune.api.status import Status, load_status
from memtune.controller import Decision, decide
from memtune.memory.measured_overhead import Remembered


def test_a_decision_that_changes_nothing_enters_few_files() -> None:
    resources = {"nodes": 1, "gpusPerNode": 1, "gpuMemory": "8Gi", "gpuProduct": "h100-80gb"}
    cluster = probed(make_job(resources=resources), measured=Remembered())
    cluster.reconcile()
    # What its probes measured is stored.
    probes = tuple(probe.model_copy(update={"measured_by": "tiny"}) for probe in load_status(cluster.status).probes)
    observed = replace(cluster.observe(), earlier=probes)
    decision = decide(cluster.job, observed, cluster.now)
    assert decision.status == load_status(cluster.status)
    assert decision.status.phase == "Running"
    assert replace(decision, status=Status()) == Decision(Status())
    assert len(entered(lambda: decide(cluster.job, observed, cluster.now), memtune)) <= 12
