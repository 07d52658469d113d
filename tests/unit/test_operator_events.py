"""The events of a job, in the order in which `kubectl describe` shows them."""

from __future__ import annotations

from typing import Any

from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.decide import Decision
from memtune_operator.events import event


class Heard(SimulatedCluster):
    """A simulated cluster whose events are objects, as the API server has them: by name, in no other order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.version = 98
        self.objects: dict[str, dict[str, Any]] = {}

    def write(self, decision: Decision, version: int) -> bool:
        """Write the status, and tell of it as the operator does."""
        is_written = super().write(decision, version)
        metadata = {"name": "tiny", "namespace": "research", "uid": "job-uid", "resourceVersion": str(version)}
        for position, each in enumerate(decision.events if is_written else ()):
            told = event({"metadata": metadata}, each, position)
            self.objects[told["metadata"]["name"]] = told
        return is_written


def test_events_of_one_second_are_shown_as_the_story_that_they_tell() -> None:
    cluster = Heard(make_job(tuning={"maxProbes": 2}))
    for _ in range(4):
        cluster.reconcile()
        for run in cluster.runs():
            cluster.start(run)
            cluster.finish(run)
    cluster.reconcile()
    # A second is all that an event's time tells, so that what is told within one stays in the order of the names.
    shown = [f"{told['reason']}: {told['message']}" for _, told in sorted(cluster.objects.items())]
    assert shown == cluster.events
    assert [line.partition(": ")[0] for line in shown] == [
        "Predicted",
        "ProbeBudget",
        "ProbeStarted",
        "ProbeEnded",
        "ProbeStarted",
        "ProbeEnded",
        "Measured",
        "Launched",
        "AttemptEnded",
        "Succeeded",
    ]
