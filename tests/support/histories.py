"""Histories of one job: what the world and the operator's fate do to it, and the promises that hold throughout."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from simulated_cluster import OUTSIDE_BYTES, Pod, SimulatedCluster

from memtune.decide import Refusal, decide
from memtune.decide.model import model_of
from memtune.observation import Condition
from memtune.plan import Plan
from memtune.report import Ending, Report
from memtune.run import RunKind
from memtune.spec.job import Job
from memtune.spec.status import load_status

Move = tuple[str, int]
_SECONDS = (1.0, 7.0, 40.0, 200.0, 900.0)
# A killed pod may go on for its grace period, and each of them rounds to whole seconds.
_SLACK_SECONDS = 3.0


class History:
    """One job, from apply to its end."""

    def __init__(self, job: Job, factor: float) -> None:
        self.cluster = SimulatedCluster(job, factor)
        self.reported: dict[str, set[int]] = defaultdict(set)
        self.known: set[str] = set()

    def play(self, moves: list[Move]) -> dict[str, Any]:
        """Every move, then a world that does what it should, until the job has ended; its last status."""
        for name, number in moves:
            MOVES[name](self, number)
            self.check()
        self._calm()
        for _ in range(400):
            self.cluster.reconcile()
            self.check()
            if self.cluster.status["phase"] in ("Succeeded", "Failed"):
                return self.cluster.status
            self._go_on()
        raise AssertionError(f"no end: {self.cluster.status['phase']}, {self.cluster.events[-8:]}")

    def _calm(self) -> None:
        cluster = self.cluster
        cluster.refusal, cluster.refusals, cluster.skew = "", (), 0.0
        cluster.job = _suspended(cluster.job, False)
        for pod in list(cluster.pods.values()):
            pod.held = False
            if pod.deleting or pod.node_lost:
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
        """A run comes to its own end, and what it reports is written down."""
        self.cluster.finish(run)
        for pod in self.cluster.of(run):
            if pod.report:
                pod.report = replace(pod.report, **changes)
                self.reported[run].add(pod.report.memory.peak_reserved_bytes or 0)

    # The promises.

    def check(self) -> None:
        """Everything that holds at any moment."""
        cluster = self.cluster
        if not cluster.status:
            return
        assert len(json.dumps(cluster.status)) < 100_000
        load_status(cluster.status)
        resources = cluster.job.spec.resources
        for record in cluster.records():
            made = Plan.parse(record["plan"]).global_batch(resources.world)
            assert made == cluster.job.spec.training.global_batch_size
            peak = record.get("peakBytes")
            assert peak is None or peak["reserved"] in self.reported[record["name"]], (
                "a report was credited to another run"
            )
        assert self._alive(RunKind.TRAIN) <= 1, "two train runs are alive"
        assert self._alive(RunKind.PROBE) <= cluster.job.spec.tuning.parallel_probes, "too many probes are alive"
        self._check_budget()
        self._check_new_runs()

    def _alive(self, kind: RunKind) -> int:
        return len({pod.run for pod in self._own(kind) if pod.exit_code is None and not pod.node_lost})

    def _own(self, kind: RunKind) -> list[Pod]:
        return [pod for pod in self.cluster.pods.values() if f"-{kind}-" in pod.run and not pod.is_stray]

    def _check_budget(self) -> None:
        cluster = self.cluster
        running = [pod for pod in self._own(RunKind.PROBE) if pod.is_running]
        spent = cluster.probe_gpu_seconds + sum(cluster.now - (pod.started_at or 0.0) for pod in running)
        gpus = cluster.job.spec.resources.world * cluster.job.spec.tuning.parallel_probes
        slack = (cluster.blind_seconds + _SLACK_SECONDS * len(cluster.status.get("probes", []))) * gpus
        assert spent <= cluster.job.max_gpu_seconds + slack, "the GPU budget was exceeded"

    def _check_new_runs(self) -> None:
        """No run is recorded on a plan that takes as much as one that ran out of memory."""
        records = self.cluster.records()
        new = [record for record in records if record["name"] not in self.known]
        self.known |= {record["name"] for record in records}
        died = [record["plan"] for record in records if record.get("verdict") == "device-oom"]
        if not new or not died:
            return
        model = model_of(self.cluster.job, load_status(self.cluster.status), None)
        least = min(model.predict(Plan.parse(plan)).device.expected for plan in died)
        for record in new:
            assert record["plan"] not in died, "a plan that ran out of memory was started again"
            if record["plan"] not in map(str, model.measured_bytes):
                assert model.predict(Plan.parse(record["plan"])).device.expected < least, "a larger plan was started"

    def check_equal_decisions(self) -> None:
        """Equal snapshots give equal decisions, and a decision that was carried out has nothing new to create."""
        cluster = self.cluster
        now = cluster.now + cluster.skew
        assert decide(cluster.job, cluster.observe(), now) == decide(cluster.job, cluster.observe(), now)
        cluster.reconcile()
        posted = list(cluster.posted)
        cluster.step()
        assert cluster.posted == posted, "reconciling again created something"


def _suspended(job: Job, suspend: bool) -> Job:
    return job.model_copy(update={"spec": job.spec.model_copy(update={"suspend": suspend})})


def _pick(history: History, number: int, which: Callable[[Pod], bool]) -> Pod | None:
    pods = [pod for name, pod in sorted(history.cluster.pods.items()) if which(pod)]
    return pods[number % len(pods)] if pods else None


def _step(history: History, _: int) -> None:
    history.cluster.step()


def _killed_step(history: History, number: int) -> None:
    history.cluster.step(cut=number % 4)


def _conflict(history: History, _: int) -> None:
    history.cluster.step(conflict=True)


def _equal(history: History, _: int) -> None:
    history.check_equal_decisions()


def _tick(history: History, number: int) -> None:
    history.cluster.tick(_SECONDS[number % len(_SECONDS)])


def _blind(history: History, number: int) -> None:
    history.cluster.tick(_SECONDS[number % len(_SECONDS)], blind=True)


def _start(history: History, _: int) -> None:
    for run in history.cluster.runs():
        history.cluster.start(run)


def _start_one(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda pod: pod.is_pending and not pod.deleting):
        pod.conditions, pod.started_at = (), history.cluster.now


def _finish(history: History, number: int) -> None:
    runs = history.cluster.runs()
    if runs:
        history.finish(runs[number % len(runs)])


def _kill(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda pod: pod.is_running):
        history.cluster.end(pod, 143)
        pod.conditions = (Condition("DisruptionTarget", "True", "PreemptionByScheduler", "preempted"),)


def _vanish(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda _: True):
        history.cluster.end(pod, 137)
        del history.cluster.pods[pod.name]


def _lose_node(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda pod: pod.is_running):
        # The node is fenced before the operator may count it as lost, so that nothing there runs on.
        history.cluster.end(pod, 137)
        pod.exit_code, pod.finished_at, pod.node_lost, pod.deleting = None, None, True, True


def _hold(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda _: True):
        pod.held = True


def _gate(history: History, number: int) -> None:
    reason, message = (("SchedulingGated", "in a queue"), ("Unschedulable", "0/2 nodes are available"))[number % 2]
    if pod := _pick(history, number, lambda pod: pod.is_pending):
        pod.conditions = (Condition("PodScheduled", "False", reason, message),)


def _no_image(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda pod: pod.is_pending):
        pod.waiting_reason = "ImagePullBackOff"


def _end_with(ending: Ending, exit_code: int, is_told: bool = True) -> Callable[[History, int], None]:
    def move(history: History, number: int) -> None:
        if pod := _pick(history, number, lambda pod: pod.is_running):
            report = history.cluster.report(pod, ending, message="garbage \x07 \u2603" * number) if is_told else None
            history.cluster.end(pod, exit_code, report)
            if report:
                history.reported[pod.run].add(report.memory.peak_reserved_bytes or 0)

    return move


def _foreign_report(history: History, number: int) -> None:
    """A pod brings the report of another run: were it credited, its memory would be in the books of no run."""
    if pod := _pick(history, number, lambda pod: pod.is_running):
        report: Report = history.cluster.report(pod, Ending.SUCCEEDED)
        memory = replace(report.memory, peak_reserved_bytes=12345 + OUTSIDE_BYTES)
        run, plan = ("tiny-probe-99", pod.plan) if number % 2 else (pod.run, "bf16-z3-full-mb1x1")
        history.cluster.end(pod, 0, replace(report, memory=memory, run=run, plan=plan))


def _smaller_gpu(history: History, _: int) -> None:
    history.cluster.usable_bytes = int(history.cluster.usable_bytes * 0.93)


def _saved(history: History, number: int) -> None:
    """Every train run that runs ends out of memory, with a checkpoint behind it."""
    for run in history.cluster.runs(RunKind.TRAIN):
        for pod in history.cluster.of(run):
            if pod.is_running:
                report = history.cluster.report(
                    pod,
                    Ending.DEVICE_OOM,
                    steps=30,
                    checkpoint_samples=160 * (number + 1),
                    checkpoint_format="deepspeed",
                )
                history.cluster.end(pod, 85, report)
                history.reported[run].add(report.memory.peak_reserved_bytes or 0)


def _suspend(history: History, number: int) -> None:
    history.cluster.job = _suspended(history.cluster.job, number % 2 == 0)


def _refuse(history: History, number: int) -> None:
    history.cluster.refusal = "exceeded quota: gpus" if number % 2 else ""
    history.cluster.refusals = (Refusal("PolicyDenied", "hostPath is not allowed"),) if number % 3 == 0 else ()


def _jump(history: History, number: int) -> None:
    skew = (-3600.0, -20.0, 0.0, 20.0, 600.0)[number % 5]
    history.cluster.blind_seconds += abs(skew - history.cluster.skew)
    history.cluster.skew = skew


def _stray(history: History, number: int) -> None:
    """Pods that carry the job's uid and belong to nothing it knows."""
    run = ("tiny-probe-77", "tiny-train-1", "tiny-probe-1")[number % 3]
    uid = f"stray-uid-{number}-{history.cluster.now}"
    pod = Pod(f"stray-{number}", uid, run, number % 3, "bf16-z1-none-mb1x16", is_stray=True)
    history.cluster.pods[pod.name] = pod


MOVES: dict[str, Callable[[History, int], None]] = {
    "step": _step,
    "killed step": _killed_step,
    "conflict": _conflict,
    "equal": _equal,
    "tick": _tick,
    "blind": _blind,
    "start": _start,
    "start one": _start_one,
    "finish": _finish,
    "kill": _kill,
    "vanish": _vanish,
    "lose node": _lose_node,
    "hold": _hold,
    "gate": _gate,
    "no image": _no_image,
    "user error": _end_with(Ending.ERROR, 1),
    "hung": _end_with(Ending.HUNG, 87),
    "host oom": _end_with(Ending.HOST_OOM, 86),
    "oom": _end_with(Ending.DEVICE_OOM, 85),
    "untold oom": _end_with(Ending.DEVICE_OOM, 85, is_told=False),
    "foreign report": _foreign_report,
    "smaller gpu": _smaller_gpu,
    "saved": _saved,
    "suspend": _suspend,
    "refuse": _refuse,
    "jump": _jump,
    "stray": _stray,
}
# So that most histories get somewhere: these come more often than others.
WEIGHTED = (*MOVES, *("step", "tick", "start", "finish") * 5)
