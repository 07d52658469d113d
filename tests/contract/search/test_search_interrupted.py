"""Whatever the sampler is: an operator that is killed at every write ends with the same story as one that is not.

tests/cluster/operator/test_interruptions.py does it to a real operator on a real cluster, with the default sampler.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from cluster_situations import SAVED, die, until_decided
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.api.tuning import Sampler
from memtune.controller.job_knowledge import _cached
from memtune.wire.report import Ending
from memtune_operator.search.optuna_search import propose

SAMPLERS = get_args(Sampler)
NIGHT_SECONDS = 12 * 3600.0


@dataclass
class KilledCluster(SimulatedCluster):
    """Its operator dies after each write, and once more after the first thing that it does then."""

    kills: int = 0

    def reconcile(self) -> None:
        for _ in range(20):
            before = self._books()
            for cut in (1, 2):
                self.step(cut)
                self.kills += self._books() != before
                # What the process knew is gone: a new one reads the status, and watches from now on.
                _cached.cache_clear()
                self.watched, self.seen_going = {}, {}
            self.step()
            if before == self._books():
                return
        raise AssertionError(f"the operator does not come to rest: {self.events[-5:]}")


@dataclass
class AbandonedCluster(SimulatedCluster):
    """No operator runs when a probe ends, nor the night after it; the next one dies between reading and writing.

    So each report is read only by a process that has seen nothing of its probe.
    """

    unread: int = 0

    def finish(self, run: str, **variables: Any) -> None:
        is_running = any(pod.is_running for pod in self.of(run))
        super().finish(run, **variables)
        if is_running:
            self.tick(NIGHT_SECONDS, blind=True)
            for _ in range(2):
                _cached.cache_clear()
                self.step(cut=0)
                self.watched, self.seen_going = {}, {}
            self.unread += 1


def lived(cluster: SimulatedCluster) -> SimulatedCluster:
    """From the first prediction through an out-of-memory of the training to its end."""
    until_decided(cluster, cluster.finish)
    die(cluster, Ending.DEVICE_OOM, 85, **SAVED)
    cluster.tick(30.0)
    for run in cluster.runs():
        cluster.start(run)
    cluster.reconcile()
    cluster.tick(60.0)
    for run in cluster.runs():
        cluster.finish(run)
    cluster.reconcile()
    return cluster


def job_of(sampler: str, **tuning: Any) -> Job:
    return make_job(tuning={"sampler": sampler, **tuning})


@pytest.mark.parametrize(
    ("sampler", "tuning"),
    [
        *((sampler, {}) for sampler in SAMPLERS),
        *((sampler, {"objectives": ["throughput", "memory"]}) for sampler in SAMPLERS),
        *((sampler, {"parallelProbes": 2}) for sampler in SAMPLERS),
    ],
)
def test_an_operator_that_is_killed_at_every_write_probes_and_launches_the_same(
    sampler: str, tuning: dict[str, Any]
) -> None:
    job = job_of(sampler, **tuning)
    whole, killed = (lived(kind(job, 1.2, search=propose)) for kind in (SimulatedCluster, KilledCluster))
    assert whole.status["phase"] == "Succeeded"
    assert len(whole.status["probes"]) > 3, "more than what the prediction enqueues"
    assert isinstance(killed, KilledCluster)
    assert killed.kills > 2 * len(whole.status["probes"])
    assert killed.status == whole.status
    assert Counter(killed.posted) == Counter(whole.posted)
    assert max(Counter(killed.posted).values()) == 1
    assert killed.events == whole.events
    assert killed.earlier == whole.earlier


def without_times(told: Any) -> Any:
    """A status without the moments at which things happened."""
    if isinstance(told, list):
        return [without_times(each) for each in told]
    if not isinstance(told, dict):
        return told
    return {name: without_times(each) for name, each in told.items() if not name.endswith(("At", "Time"))}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_report_that_nobody_was_there_to_read_counts_as_if_it_had_been_read_at_once(sampler: str) -> None:
    whole, abandoned = (kind(job_of(sampler), 1.2, search=propose) for kind in (SimulatedCluster, AbandonedCluster))
    for cluster in (whole, abandoned):
        until_decided(cluster, cluster.finish)
    assert isinstance(abandoned, AbandonedCluster)
    assert abandoned.unread == len(whole.status["probes"]) > 3
    assert without_times(abandoned.status) == without_times(whole.status)
    assert abandoned.posted == whole.posted
    assert abandoned.events == whole.events
