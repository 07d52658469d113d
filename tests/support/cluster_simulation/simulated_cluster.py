"""An in-memory cluster for `memtune.controller`: an API server, pods, and an operator that can be killed.

It decides nothing. The world moves only when a test says so, and it keeps its own records, against which the operator's
promises are checked.
"""

from __future__ import annotations

import json
import marshal
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from memtune.api import gpu_of, load_job, to_workload
from memtune.api.job import Job
from memtune.api.status import ProbeStatus
from memtune.controller import Blocker, Decision, Deletion, Node, Observed, Owned, decide
from memtune.controller.observation import PodCondition, PodObservation, RunObservation
from memtune.memory.measured_overhead import JobOverhead, MeasuredOverhead
from memtune.memory.predictor import Predictor
from memtune.memory.traced_model import read_traced
from memtune.planning.next_probe import Search, most_promising
from memtune.plans.plan import Plan
from memtune.units import GIB, MIB
from memtune.wire.names import pod_name, run_name
from memtune.wire.report import Device, Ending, Memory, Report
from memtune.wire.run import Run, RunKind, TraceRun

OUTSIDE_BYTES = 256 * MIB
GRACE_SECONDS = 1.0


@lru_cache(maxsize=4096)
def predicted(job_key: str, plan: str, trace: str) -> tuple[int, float]:
    """Bytes and step seconds by the uncorrected predictor; the simulation's truth is a factor of them."""
    job = load_job(json.loads(job_key))
    gpu = gpu_of(job)
    assert gpu is not None
    model = read_traced(trace) if trace else None
    found = Predictor(to_workload(job, gpu, model)).predict(Plan.parse(plan))
    return int(found.device.expected), found.step_seconds.expected


@dataclass
class Pod:
    """A pod as the API server has it."""

    name: str
    uid: str
    run: str
    index: int
    plan: str
    host_request_bytes: int = 0
    started_at: float | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    exit_reason: str = ""
    report: Report | None = None
    last_words: str = ""
    conditions: tuple[PodCondition, ...] = ()
    waiting_reason: str = ""
    reason: str = ""
    node: str = "node-a"
    node_lost: bool = False
    node_doubted: bool = False
    deleting: bool = False
    held: bool = False
    is_stuck: bool = False
    is_stray: bool = False
    dark_since: float | None = None
    late: tuple[int, Report | None, float] | None = None
    seconds: int = 0

    @property
    def is_running(self) -> bool:
        return self.started_at is not None and not self.has_ended and not self.node_lost

    @property
    def has_ended(self) -> bool:
        """Whether its container has ended, even if not reported yet."""
        return self.exit_code is not None or self.late is not None

    @property
    def is_pending(self) -> bool:
        return self.started_at is None and not self.has_ended

    def held_seconds(self, now: float) -> float:
        """How long its container has run by then."""
        return max((self.finished_at or now) - self.started_at, 0.0) if self.started_at is not None else 0.0

    def seen(self) -> PodObservation:
        goes_on = self.started_at is not None and self.exit_code is None and not self.node_lost
        phase = "Pending" if self.is_pending else "Running" if goes_on else "Failed"
        return PodObservation(
            self.index,
            name=self.name,
            uid=self.uid,
            node=self.node,
            plan=self.plan,
            phase="Succeeded" if self.exit_code == 0 else "Failed" if self.reason else phase,
            reason=self.reason,
            conditions=self.conditions,
            waiting_reason=self.waiting_reason,
            deleting=self.deleting,
            node_lost=self.node_lost,
            node_doubted=self.node_doubted,
            exit_code=self.exit_code,
            exit_reason=self.exit_reason,
            started_at_seconds=self.started_at,
            finished_at_seconds=self.finished_at,
            report=self.report,
            failure_order=self.report.failure_order if self.report else None,
            last_words=self.last_words,
        )


_Asked = tuple[Job, Observed, float, Search]


@dataclass
class SimulatedCluster:
    """The world of one job. ``factor`` is truth over prediction, ``usable_bytes`` a GPU's memory.

    ``built`` is the trace of what the job's factory builds, ``remembered`` the one that its namespace remembers;
    ``measured_overhead`` is what it remembers of earlier jobs on this GPU, and keeps of this one; ``earlier`` of
    probes. ``prices`` are the operator's, by GPU product; ``search`` is what its sampler is.
    """

    job: Job
    factor: float = 1.0
    usable_bytes: int = 0
    now: float = 1_700_000_000.0
    skew: float = 0.0
    status: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    services: dict[str, str] = field(default_factory=dict)
    built: str = ""
    remembered: str = ""
    measured_overhead: MeasuredOverhead | None = None
    earlier: tuple[ProbeStatus, ...] | None = None
    prices: dict[str, float] = field(default_factory=dict)
    is_forgetful: bool = False
    rejection: str = ""
    blockers: tuple[Blocker, ...] = ()
    nodes: tuple[Node, ...] | None = None
    uids: int = 0
    blind_seconds: float = 0.0
    hidden_seconds: float = 0.0
    probe_gpu_seconds: float = 0.0
    wake_after: float | None = None
    posted: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    is_deleted: bool = False
    # The state of the operator's watch: the pods at its last look, and those that it saw go.
    watched: dict[tuple[str, int], Pod] = field(default_factory=dict)
    seen_going: dict[tuple[str, int], float] = field(default_factory=dict)
    search: Search = most_promising
    _last: tuple[_Asked, Decision, dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        dumped = self.job.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"status"})
        gpu = gpu_of(self.job)
        self.usable_bytes = self.usable_bytes or (gpu.usable_bytes if gpu else 8 * GIB)
        self.key = json.dumps(dumped, sort_keys=True)

    # The API server.

    def observe(self) -> Observed:
        """Return everything that an operator sees, as one snapshot."""
        runs: dict[str, list[PodObservation]] = {}
        for pod in self.pods.values():
            runs.setdefault(pod.run, []).append(pod.seen())
        for record in self.records():
            runs.setdefault(record["name"], [])
        self._watch()
        return Observed(
            status=marshal.loads(marshal.dumps(self.status)),
            runs={name: RunObservation(tuple(pods), rejection=self.rejection) for name, pods in runs.items()},
            owned=tuple(Owned("Service", name, uid, name) for name, uid in self.services.items()),
            nodes=self.nodes,
            blockers=self.blockers,
            seen_going=dict(self.seen_going),
            trace=self.remembered,
            measured_overhead=self.measured_overhead,
            earlier=self.earlier,
            gpu_hour_prices=self.prices,
        )

    def _watch(self) -> None:
        """A running operator has seen pods go; a restarted one only finds what is left."""
        there = {(pod.run, pod.index): pod for pod in self.pods.values()}
        known = self.seen_going | {place: pod.held_seconds(self.now) for place, pod in self.watched.items()}
        self.seen_going = {place: seconds for place, seconds in known.items() if place not in there}
        self.watched = there

    def records(self) -> list[dict[str, Any]]:
        """Return every recorded run."""
        trace = self.status.get("trace")
        lists = (self.status.get(name, []) for name in ("emulations", "probes", "attempts"))
        return [*([trace] if trace else []), *(record for each in lists for record in each)]

    def write(self, decision: Decision, version: int) -> bool:
        """Replace the status unless somebody else did since it was read."""
        if version != self.version:
            return False
        self.status = self._written(decision)
        self.version += 1
        return True

    def _written(self, decision: Decision) -> dict[str, Any]:
        """The status of a decision, as the API server stores it."""
        if self._last and self._last[1] is decision:
            return self._last[2]
        return decision.status.model_dump(mode="json", by_alias=True, exclude_none=True)

    def post(self, run: Run | TraceRun) -> None:
        """Create what is missing of a run, unless it is rejected."""
        name = run_name(self.job.metadata.name, run.kind, run.number)
        if self.rejection:
            return
        count, plan, asked, seconds = 1, "", 0, 0
        if isinstance(run, Run):
            count, plan = 1 if run.gpu else self.job.spec.resources.nodes, str(run.plan)
            asked, seconds = run.host_request_bytes, run.seconds
            if not run.gpu:
                self.services.setdefault(name, self._uid())
        for index in range(count):
            pod = pod_name(self.job.metadata.name, run.kind, run.number, index)
            if pod not in self.pods:
                self.pods[pod] = Pod(pod, self._uid(), name, index, plan, asked, seconds=seconds)
                self.posted.append(pod)

    def remember(self, trace: str) -> None:
        """Store a trace in the namespace, if writing is allowed."""
        self.remembered = "" if self.is_forgetful else trace

    def keep(self, measured: JobOverhead) -> None:
        """Store what was measured outside the allocator."""
        self.measured_overhead = (self.measured_overhead or MeasuredOverhead()).having(measured)

    def delete(self, deletion: Deletion) -> None:
        """Delete an object if its uid still matches."""
        if deletion.kind == "Service":
            if self.services.get(deletion.name) == deletion.uid:
                del self.services[deletion.name]
            return
        pod = self.pods.get(deletion.name)
        if pod is None or pod.uid != deletion.uid:
            return
        pod.deleting = True
        if pod.is_stuck and pod.is_running:
            return
        if pod.is_running:
            self.end(pod, 143, grace=GRACE_SECONDS)
        if not pod.held and not pod.node_lost:
            del self.pods[pod.name]

    # The operator.

    def step(self, cut: int | None = None, conflict: bool = False) -> Decision:
        """Run one turn of the operator: observe, decide, write, act. It crashes after ``cut`` of these actions."""
        decision, version = self._decided(), self.version
        if cut is not None:
            self._last = None  # the next process knows nothing of it
        self.wake_after = decision.wake_after_seconds
        if cut == 0:
            return decision
        if self._written(decision) != self.status:
            self.version += 1 if conflict else 0
            if not self.write(decision, version):
                return decision
            self.events += [f"{event.reason}: {event.message}" for event in decision.events]
        actions = [
            *(partial(self.delete, d) for d in decision.delete),
            *([partial(self.remember, decision.trace)] if decision.trace else []),
            *([partial(self.keep, decision.measured_overhead)] if decision.measured_overhead else []),
            *([partial(setattr, self, "earlier", decision.probes)] if decision.probes else []),
            *(partial(self.post, run) for run in decision.create),
        ]
        for action in actions[: None if cut is None else cut - 1]:
            action()
        self.is_deleted = self.is_deleted or decision.delete_job
        return decision

    def _decided(self) -> Decision:
        """Decide, unless nothing has changed since the last decision: equal snapshots give equal decisions."""
        asked = self.job, self.observe(), self.now + self.skew, self.search
        if self._last is None or self._last[0] != asked:
            decision = decide(*asked)
            self._last = asked, decision, self._written(decision)
        return self._last[1]

    def reconcile(self) -> None:
        """Run turns of the operator until nothing changes any more."""
        for _ in range(20):
            before = self._books()
            self.step()
            if before == self._books():
                return
        raise AssertionError(f"the operator does not come to rest: {self.events[-5:]}")

    def _books(self) -> tuple[object, ...]:
        known = self.remembered, self.measured_overhead, self.earlier
        return self.version, sorted(self.pods), sorted(self.services), *known

    # The world.

    def tick(self, seconds: float, blind: bool = False) -> None:
        """Advance the time; a running operator sees what happened before, and wakes up as scheduled."""
        if blind:
            self.now += seconds
            self.blind_seconds += seconds
            self.watched, self.seen_going = {}, {}
            self._end_overdue()
            return
        self.reconcile()
        while seconds > 0:
            part = min(seconds, self.wake_after or seconds)
            self.now += part
            seconds -= part
            self._end_overdue()
            self.reconcile()

    def start(self, run: str) -> None:
        """Schedule and start every pod of a run."""
        for pod in self.of(run):
            if pod.is_pending and not pod.deleting:
                pod.conditions, pod.waiting_reason, pod.started_at = (), "", self.now

    def of(self, run: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.run == run]

    def runs(self, kind: RunKind | None = None) -> list[str]:
        """Names of the runs with pods, of one kind or all."""
        names = sorted({pod.run for pod in self.pods.values()})
        return [name for name in names if kind is None or f"-{kind}-" in name]

    def _end_overdue(self) -> None:
        """End a probe whose seconds are over, even without an operator; all nodes end with the first."""
        for pod in sorted(self.pods.values(), key=lambda pod: pod.started_at or 0.0):
            if not (pod.is_running and pod.seconds and self.now > (pod.started_at or 0.0) + pod.seconds):
                continue
            ended_at = (pod.started_at or 0.0) + pod.seconds
            has_met = len(self.of(pod.run)) == sum(each.started_at is not None for each in self.of(pod.run))
            for each in self.of(pod.run):
                if each.is_running:
                    ending, code = (Ending.HUNG, 87) if each is pod and has_met else (Ending.TERMINATED, 143)
                    report = self.report(each, ending, failure_order=int(each is not pod), memory=Memory())
                    self.end(each, code, report, grace=max(ended_at, each.started_at or 0.0) + GRACE_SECONDS - self.now)

    def end(self, pod: Pod, exit_code: int, report: Report | None = None, grace: float = 0.0) -> None:
        """End the wrapped container."""
        if pod.is_running and not pod.is_stray and f"-{RunKind.PROBE}-" in pod.run:
            seconds = self.now + grace - (pod.started_at or self.now)
            self.probe_gpu_seconds += seconds * self.job.spec.resources.gpus_per_node
        pod.exit_code, pod.report, pod.finished_at = exit_code, report, self.now + grace

    def end_unseen(self, pod: Pod, exit_code: int, report: Report | None) -> None:
        """End the wrapped container without its kubelet reporting it."""
        self.end(pod, exit_code, report)
        pod.late = (exit_code, report, self.now)
        pod.exit_code, pod.report, pod.finished_at = None, None, None

    def tell(self, pod: Pod) -> None:
        """Report what the kubelet has not reported."""
        if pod.late:
            pod.exit_code, pod.report, pod.finished_at = pod.late
            pod.late = None

    def light(self, pod: Pod) -> None:
        """Reconnect a node with its pod, which learns what was decided meanwhile."""
        latest = (pod.started_at or 0.0) + pod.seconds + GRACE_SECONDS if pod.seconds else self.now
        self.hidden_seconds += max(min(self.now, latest) - (pod.dark_since or self.now), 0.0)
        pod.dark_since, pod.node_lost, pod.node_doubted = None, False, False
        self._end_overdue()
        if pod.deleting and pod.is_running:
            self.end(pod, 143, grace=GRACE_SECONDS)
        if pod.deleting and not pod.held:
            del self.pods[pod.name]

    def truth(self, plan: str) -> int:
        """The true peak of a plan on each device."""
        return int(predicted(self.key, plan, self.built)[0] * self.factor)

    def step_seconds(self, plan: str) -> float:
        """The true step time, in another order than predicted."""
        return predicted(self.key, plan, self.built)[1] * (0.8 + 0.4 * (sum(plan.encode()) % 11) / 10)

    def finish(self, run: str, **report: Any) -> None:
        """A run ends by itself: out of memory if its plan takes more than there is, else successfully."""
        for pod in self.of(run):
            if pod.is_running and f"-{RunKind.TRACE}-" in run:
                pod.last_words = self.built
                self.end(pod, 0)
            elif pod.is_running:
                fits = self.truth(pod.plan) <= self.usable_bytes
                ending = Ending.SUCCEEDED if fits else Ending.DEVICE_OOM
                self.end(pod, 0 if fits else 85, self.report(pod, ending, **report))

    def report(self, pod: Pod, ending: Ending, **changes: Any) -> Report:
        """The runner's report of a pod."""
        peak = min(self.truth(pod.plan), self.usable_bytes)
        over = self.truth(pod.plan) - peak
        memory = Memory(
            device_total_bytes=self.usable_bytes,
            peak_allocated_bytes=int(0.9 * (peak - OUTSIDE_BYTES)),
            peak_active_bytes=int(0.9 * (peak - OUTSIDE_BYTES)),
            peak_reserved_bytes=peak - OUTSIDE_BYTES,
            non_torch_bytes=OUTSIDE_BYTES,
            failed_request_bytes=max(over, MIB) if ending is Ending.DEVICE_OOM else None,
            alloc_retries=0 if ending is Ending.SUCCEEDED else 1,
        )
        seconds = self.step_seconds(pod.plan)
        training = self.job.spec.training
        codes = {Ending.SUCCEEDED: 0, Ending.DEVICE_OOM: 85, Ending.HOST_OOM: 86, Ending.HUNG: 87}
        base = Report(
            ending,
            codes.get(ending, 1),
            run=pod.run,
            plan=pod.plan,
            steps=3,
            device=Device.VIRTUAL,
            memory=memory,
            step_seconds=seconds,
            tokens_per_second=training.global_batch_size * training.sequence_length / seconds,
            message="" if ending is Ending.SUCCEEDED else f"it ended: {ending}",
        )
        return replace(base, **changes)

    def _uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids}"
