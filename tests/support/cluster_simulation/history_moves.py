"""The moves of random histories: what the world, and failures of the operator, may do to a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from random_histories import History, suspended, with_batch
from simulated_cluster import OUTSIDE_BYTES, Pod

from memtune.api.job import Job
from memtune.controller import Blocker, Node
from memtune.controller.observation import PodCondition
from memtune.units import MIB
from memtune.wire.report import Ending, Phase, Report, read_report
from memtune.wire.report_checks import ReportError
from memtune.wire.run import RunKind

Move = tuple[str, int]
_SECONDS = (1.0, 7.0, 40.0, 200.0, 900.0, 30_000.0)


def play(job: Job, factor: float, moves: list[Move]) -> dict[str, Any]:
    """Play a whole history, checking the promises after each move, then run to the end; return its last status."""
    history = History(job, factor)
    for name, number in moves:
        MOVES[name](history, number)
        history.check()
    return history.to_its_end()


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
        pod.conditions = (PodCondition("DisruptionTarget", "True", "PreemptionByScheduler", "preempted"),)


def _vanish(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda _: True):
        history.cluster.end(pod, 137)
        del history.cluster.pods[pod.name]


def _lose_node(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda pod: pod.is_running):
        # The node is fenced before the operator may count it as lost, so that nothing runs on there.
        history.cluster.end(pod, 137)
        pod.exit_code, pod.finished_at, pod.node_lost, pod.deleting = None, None, True, True


def _hold(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda _: True):
        pod.held = True


def _stick(history: History, number: int) -> None:
    """A pod of an attempt ignores its termination."""
    if pod := _pick(history, number, lambda pod: pod.is_running and f"-{RunKind.TRAIN}-" in pod.run):
        pod.is_stuck = True


def _gate(history: History, number: int) -> None:
    reason, message = (("SchedulingGated", "in a queue"), ("Unschedulable", "0/2 nodes are available"))[number % 2]
    if pod := _pick(history, number, lambda pod: pod.is_pending):
        pod.conditions = (PodCondition("PodScheduled", "False", reason, message),)


def _no_image(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda pod: pod.is_pending):
        pod.waiting_reason = "ImagePullBackOff"


def _end_with(ending: Ending, exit_code: int, is_told: bool = True) -> Callable[[History, int], None]:
    def move(history: History, number: int) -> None:
        if pod := _pick(history, number, lambda pod: pod.is_running):
            told = "garbage \x07 \u2603" * number
            # A trace run has no plan, and its pod no report.
            report = history.cluster.report(pod, ending, message=told) if is_told and pod.plan else None
            history.cluster.end(pod, exit_code, report)
            if report:
                history.reported[pod.run].add(report.memory.peak_reserved_bytes or 0)

    return move


def _foreign_report(history: History, number: int) -> None:
    """A pod brings the report of another run, which must not be credited to any run."""
    if pod := _pick(history, number, lambda pod: pod.is_running and bool(pod.plan)):
        report: Report = history.cluster.report(pod, Ending.SUCCEEDED)
        memory = replace(report.memory, peak_reserved_bytes=12345 + OUTSIDE_BYTES)
        run, plan = ("tiny-probe-99", pod.plan) if number % 2 else (pod.run, "bf16-z3-full-mb1x1")
        history.cluster.end(pod, 0, replace(report, memory=memory, run=run, plan=plan))


_ENDS = ((Ending.SUCCEEDED, 0), (Ending.DEVICE_OOM, 85), (Ending.TERMINATED, 143), (Ending.ERROR, 1))


def _told(history: History, pod: Pod, number: int) -> tuple[int, Report | None]:
    """One way for a pod to end, with its report; the larger the number, the more the report is truncated."""
    ending, exit_code = _ENDS[number % len(_ENDS)]
    whole = json.dumps(history.cluster.report(pod, ending, message="words" * 9).to_json())
    try:
        report = read_report(whole[: len(whole) * (10 - number) // 10] if number else "\0{garbage")
    except ReportError:
        return exit_code, None
    history.reported[pod.run].add(report.memory.peak_reserved_bytes or 0)
    return exit_code, report


def _torn_report(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda pod: pod.is_running and bool(pod.plan)):
        history.cluster.end(pod, *_told(history, pod, number))


def _end_unseen(history: History, number: int) -> None:
    """A container ends; its report comes later, when the pod may be given up or about to go."""
    if pod := _pick(history, number, lambda pod: pod.is_running and bool(pod.plan)):
        history.cluster.end_unseen(pod, *_told(history, pod, number))
        pod.reason = ("", "Evicted", "DeadlineExceeded")[number % 3]


def _tell(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda pod: pod.late is not None):
        history.cluster.tell(pod)


def _darken(history: History, number: int) -> None:
    """A node is cut off while its pod runs on: first in doubt, then lost."""
    if pod := _pick(history, number, lambda pod: pod.is_running):
        pod.dark_since = history.cluster.now if pod.dark_since is None else pod.dark_since
        pod.node_lost, pod.node_doubted = pod.node_doubted, True


def _light(history: History, number: int) -> None:
    if pod := _pick(history, number, lambda pod: pod.dark_since is not None):
        history.cluster.light(pod)


def _nodes(history: History, number: int) -> None:
    """Nodes come and go with their labels; or nobody may read them."""
    nodes = (Node("node-a", "NVIDIA-L4", 23034 * MIB), Node("node-b", "NVIDIA-H100-80GB-HBM3"))
    history.cluster.nodes = (None, (), nodes[:1], nodes)[number % 4]


def _smaller_gpu(history: History, _: int) -> None:
    history.cluster.usable_bytes = int(history.cluster.usable_bytes * 0.93)


def _oom_in(phase: Phase) -> Callable[[History, int], None]:
    """Every running run ends out of memory outside its training, sometimes with a checkpoint."""

    def move(history: History, number: int) -> None:
        saved: dict[str, Any] = {"checkpoint_samples": 160, "checkpoint_format": "deepspeed"} if number % 2 else {}
        for pod in history.cluster.pods.values():
            if pod.is_running and pod.plan:
                report = history.cluster.report(pod, Ending.DEVICE_OOM, phase=phase, steps=30, **saved)
                history.cluster.end(pod, 85, report)
                history.reported[pod.run].add(report.memory.peak_reserved_bytes or 0)

    return move


def _saved(history: History, number: int) -> None:
    """Every running attempt ends out of memory, with a checkpoint."""
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
    history.cluster.job = suspended(history.cluster.job, number % 2 == 0)


def _edit(history: History, number: int) -> None:
    """Edit fields that may be edited at any time: headroom, and the limits of probes and relaunches."""
    job = history.cluster.job
    tuning, retry = job.spec.tuning, job.spec.retry
    if number % 2:
        tuning = tuning.model_copy(update={"headroom": ("2%", "8%", "45%")[number // 2 % 3]})
    elif number % 4:
        tuning = tuning.model_copy(update={"max_probes": tuning.max_probes + 1})
    else:
        retry = retry.model_copy(update={"max_oom_retries": number, "allow_restart": not retry.allow_restart})
    spec = job.spec.model_copy(update={"tuning": tuning, "retry": retry})
    history.cluster.job = job.model_copy(update={"spec": spec})


def _edit_in_vain(history: History, number: int) -> None:
    """Edit an immutable field on a server that allows it, and restore it."""
    batch = history.job.spec.training.global_batch_size
    if number % 2 and history.cluster.status.get("fixed"):
        batch *= 2
    history.cluster.job = with_batch(history.cluster.job, batch)


def _refuse(history: History, number: int) -> None:
    history.cluster.rejection = "exceeded quota: gpus" if number % 2 else ""
    history.cluster.blockers = (Blocker("PolicyDenied", "hostPath is not allowed"),) if number % 3 == 0 else ()


def _jump(history: History, number: int) -> None:
    skew = (-3600.0, -20.0, 0.0, 20.0, 600.0)[number % 5]
    history.cluster.hidden_seconds += abs(skew - history.cluster.skew)
    history.cluster.skew = skew


def _stray(history: History, number: int) -> None:
    """Create pods with the job's uid that belong to none of its runs."""
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
    "stick": _stick,
    "gate": _gate,
    "no image": _no_image,
    "user error": _end_with(Ending.ERROR, 1),
    "hung": _end_with(Ending.HUNG, 87),
    "host oom": _end_with(Ending.HOST_OOM, 86),
    "oom": _end_with(Ending.DEVICE_OOM, 85),
    "untold oom": _end_with(Ending.DEVICE_OOM, 85, is_told=False),
    "foreign report": _foreign_report,
    "torn report": _torn_report,
    "end unseen": _end_unseen,
    "tell": _tell,
    "darken": _darken,
    "light": _light,
    "nodes": _nodes,
    "smaller gpu": _smaller_gpu,
    "saved": _saved,
    "oom in evaluation": _oom_in(Phase.EVALUATION),
    "oom in save": _oom_in(Phase.SAVE),
    "suspend": _suspend,
    "edit": _edit,
    "edit in vain": _edit_in_vain,
    "refuse": _refuse,
    "jump": _jump,
    "stray": _stray,
}
# These are more frequent, so that most histories make progress.
WEIGHTED = (*MOVES, *("step", "tick", "start", "finish") * 5)
