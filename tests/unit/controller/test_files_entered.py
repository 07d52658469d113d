"""How many files a reader has to open to follow a decision."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from decided import probed
from small_jobs import make_job

import memtune
from memtune.api.status import Status, load_status
from memtune.controller import Decision, decide
from memtune.memory.measured_overhead import Remembered

CORE = Path(memtune.__file__).parent


def entered(call: Callable[[], Any]) -> set[str]:
    """The files of the core whose functions are called."""
    found = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(CORE):
            found.add(str(path.relative_to(CORE)))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


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
    assert len(entered(lambda: decide(cluster.job, observed, cluster.now))) <= 14
