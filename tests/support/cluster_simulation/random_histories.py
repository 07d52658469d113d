"""Random histories of one job in a simulated cluster, and the promises that hold throughout."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

from simulated_cluster import OUTSIDE_BYTES, Pod, SimulatedCluster
from small_traces import small_trace

from memtune.api.job import Job
from memtune.api.status import load_status, to_seconds
from memtune.controller import decide
from memtune.controller.job_knowledge import knowledge_of
from memtune.memory.measured_overhead import MeasuredOverhead
from memtune.plans.plan import Plan
from memtune.wire.run import RunKind
from memtune.wire.trace_message import pack

# A killed pod may run on for its grace period, and each of them rounds to whole seconds.
_SLACK_SECONDS = 3.0
_CROWDED_SHARE = 0.25
# Phases in which an attempt may die without its plan being too large, and the remedies.
_BESIDE = ("evaluation", "saving")
_SPARING = ("evaluationBatch", "shardedSave")


class History:
    """One job, from apply to its end."""

    def __init__(self, job: Job, factor: float) -> None:
        built = pack(small_trace()) if job.spec.model.factory else ""
        self.job = job
        self.cluster = SimulatedCluster(job, factor, built=built, measured_overhead=MeasuredOverhead())
        self.reported: dict[str, set[int]] = defaultdict(set)
        self.known: set[str] = set()
        self.checked = ""

    def to_its_end(self) -> dict[str, Any]:
        """Let the world behave well until the job has ended; return its last status."""
        self._calm()
        for _ in range(400):
            self.cluster.reconcile()
            self.check()
            if self.cluster.status["phase"] in ("Succeeded", "Failed"):
                self._goes_in_time()
                return self.cluster.status
            self._go_on()
        raise AssertionError(f"no end: {self.cluster.status['phase']}, {self.cluster.events[-8:]}")

    def _goes_in_time(self) -> None:
        """An ended job is deleted once its TTL is over, counted from the end that the operator's clock told."""
        cluster = self.cluster
        time_to_live = cluster.job.spec.ttl_seconds_after_finished
        if time_to_live is None:
            assert not cluster.is_deleted
            return
        ends = [each for each in cluster.status["conditions"] if each["type"] in ("Complete", "Failed")]
        ended = max(to_seconds(each["lastTransitionTime"]) or 0.0 for each in ends)
        cluster.tick(max(ended + time_to_live - cluster.now, 0.0) + 1.0)
        assert cluster.is_deleted

    def _calm(self) -> None:
        cluster = self.cluster
        cluster.rejection, cluster.blockers, cluster.skew = "", (), 0.0
        cluster.job = with_batch(suspended(cluster.job, False), self.job.spec.training.global_batch_size)
        for pod in list(cluster.pods.values()):
            pod.held = False
            cluster.tell(pod)
            if pod.dark_since is not None:
                cluster.light(pod)
            elif pod.deleting or pod.node_lost:
                cluster.end(pod, 143)
                del cluster.pods[pod.name]

    def _go_on(self) -> None:
        cluster = self.cluster
        for run in cluster.runs():
            cluster.start(run)
        cluster.reconcile()
        self.check()
        cluster.tick(15.0)
        for run in cluster.runs():
            self.finish(run)
        cluster.reconcile()
        cluster.tick(min(cluster.wake_after or 5.0, 400.0))

    def finish(self, run: str, **changes: Any) -> None:
        """A run ends by itself, and its report is written."""
        self.cluster.finish(run)
        for pod in self.cluster.of(run):
            if pod.report:
                pod.report = replace(pod.report, **changes)
                self.reported[run].add(pod.report.memory.peak_reserved_bytes or 0)

    # The invariants.

    def check(self) -> None:
        """Check every invariant that holds at any moment."""
        cluster = self.cluster
        if not cluster.status:
            return
        written = json.dumps(cluster.status)
        if written != self.checked:
            assert len(written) < 100_000
            load_status(cluster.status)
            self.checked = written
        resources = cluster.job.spec.resources
        for record in self._planned():
            made = Plan.parse(record["plan"]).global_batch(resources.world)
            assert made == self.job.spec.training.global_batch_size
            peak = record.get("peakBytes")
            if peak is not None:
                assert peak["reserved"] in self.reported[record["name"]], "a report was credited to another run"
                assert peak["device"] == peak["reserved"] + OUTSIDE_BYTES, "a part of a measurement was taken for it"
        assert self._alive(RunKind.TRAIN) <= 1, "two attempts are alive"
        assert self._alive(RunKind.PROBE) <= cluster.job.spec.tuning.parallel_probes, "too many probes are alive"
        told = ("succeeded", "device-oom", "host-oom", "hung", "user-error")
        probes = [each for each in cluster.status.get("probes", []) if each.get("verdict") in told or _goes_on(each)]
        assert len(probes) <= cluster.job.spec.tuning.max_probes, "too many probes were made"
        self._check_budget()
        self._check_new_runs()

    def _planned(self) -> list[dict[str, Any]]:
        """Return the runs that execute a plan."""
        return [record for record in self.cluster.records() if "plan" in record]

    def _alive(self, kind: RunKind) -> int:
        return len({pod.run for pod in self._own(kind) if not (pod.has_ended or pod.node_lost)})

    def _own(self, kind: RunKind) -> list[Pod]:
        return [pod for pod in self.cluster.pods.values() if f"-{kind}-" in pod.run and not pod.is_stray]

    def _check_budget(self) -> None:
        cluster = self.cluster
        running = [pod for pod in self._own(RunKind.PROBE) if pod.is_running]
        spent = cluster.probe_gpu_seconds + sum(cluster.now - (pod.started_at or 0.0) for pod in running)
        world, others = cluster.job.spec.resources.world, cluster.job.spec.tuning.parallel_probes - 1
        hidden = cluster.hidden_seconds + _SLACK_SECONDS * len(cluster.status.get("probes", []))
        # Parallel probes each end by themselves after their share of what was left at their start, and others have
        # started since.
        unseen = min(cluster.blind_seconds * world, _CROWDED_SHARE * cluster.job.max_gpu_seconds) * others
        slack = hidden * world * (1 + others) + unseen
        assert spent <= cluster.job.max_gpu_seconds + slack, "the GPU budget was exceeded"

    def _check_new_runs(self) -> None:
        """Check that no run is recorded on a plan that needs as much as one that ran out of memory."""
        records = self._planned()
        new = [record for record in records if record["name"] not in self.known]
        if any(record["name"].endswith("-train-1") for record in new):
            self._check_headroom(new[-1])
        self.known |= {record["name"] for record in records}
        fell = [record for record in records if record.get("verdict") == "device-oom"]
        died = [
            record["plan"] for record in fell if record.get("outOfMemory") not in _BESIDE or "-probe-" in record["name"]
        ]
        for record in new:
            assert not any(_is_like(each, record) for each in fell), "what ran out of memory was started again"
        if not new or not died:
            return
        is_traced = self.cluster.status.get("trace", {}).get("verdict") == "succeeded"
        trace = self.cluster.built if is_traced else ""
        knowledge = knowledge_of(self.cluster.job, load_status(self.cluster.status), None, trace)
        least = min(knowledge.predict(Plan.parse(plan)).device.expected for plan in died)
        for record in new:
            if record["plan"] not in map(str, knowledge.measured_bytes):
                assert knowledge.predict(Plan.parse(record["plan"])).device.expected < least, (
                    "a larger plan was started"
                )

    def _check_headroom(self, first: dict[str, Any]) -> None:
        """Only a plan that kept its headroom is launched first, unless the job gave it."""
        tuning = self.cluster.job.spec.tuning
        peaks = [probe.get("peakBytes") for probe in self.cluster.status["probes"] if probe["plan"] == first["plan"]]
        kept = [peak for peak in peaks if peak and peak["device"] <= peak["total"] * (1 - tuning.headroom_ratio)]
        assert kept or tuning.mode != "Probe", "a plan was launched that was not measured, or kept too little free"

    def check_equal_decisions(self) -> None:
        """Equal snapshots give equal decisions, and a decision that was carried out creates nothing new."""
        cluster = self.cluster
        now = cluster.now + cluster.skew
        assert decide(cluster.job, cluster.observe(), now) == decide(cluster.job, cluster.observe(), now)
        cluster.reconcile()
        posted = list(cluster.posted)
        cluster.step()
        assert cluster.posted == posted, "reconciling again created something"


def _is_like(fell: dict[str, Any], record: dict[str, Any]) -> bool:
    """Whether a run repeats what another ran out of memory with; an attempt may shrink its evaluation or save."""
    mine, theirs = ([each.get(name) for name in ("plan", *_SPARING)] for each in (record, fell))
    return mine == theirs or ("-probe-" in fell["name"] and mine[0] == theirs[0])


def _goes_on(record: dict[str, Any]) -> bool:
    return "endedAt" not in record


def suspended(job: Job, suspend: bool) -> Job:
    """Suspend or resume the job."""
    return job.model_copy(update={"spec": job.spec.model_copy(update={"suspend": suspend})})


def with_batch(job: Job, size: int) -> Job:
    """Edit the job's global batch, and increase its generation."""
    if size == job.spec.training.global_batch_size:
        return job
    training = job.spec.training.model_copy(update={"global_batch_size": size})
    metadata = job.metadata.model_copy(update={"generation": job.metadata.generation + 1})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"training": training}), "metadata": metadata})
