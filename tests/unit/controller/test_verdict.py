"""The classifier: a test per row, precedence within a pod and over all pods, one verdict for everything."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtune.controller.observation import PodCondition, PodObservation, RunObservation
from memtune.controller.verdict import Conclusion, Verdict, conclude


@dataclass(frozen=True)
class Report:
    """A report as the classifier sees it."""

    ending: str
    message: str = ""


OOM_KILLED = "OOMKilled: the container took more host memory than its limit"
RUNNING = PodObservation(0, phase="Running")
PENDING = PodObservation(0)
ENDED_WELL = PodObservation(0, phase="Succeeded", exit_code=0, finished_at_seconds=50.0, report=Report("succeeded"))


def failed(exit_code: int, ending: str = "", message: str = "", order: int | None = None) -> PodObservation:
    report = Report(ending, message) if ending else None
    ended = PodObservation(0, phase="Failed", exit_code=exit_code, finished_at_seconds=50.0)
    return replace(ended, report=report, failure_order=order)


def held(reason: str, message: str = "") -> PodObservation:
    return replace(PENDING, conditions=(PodCondition("PodScheduled", "False", reason, message),))


def waiting(reason: str, message: str = "") -> PodObservation:
    return replace(PENDING, waiting_reason=reason, waiting_message=message)


def verdict_of(*pods: PodObservation) -> Conclusion | None:
    return conclude(RunObservation(tuple(replace(pod, index=i) for i, pod in enumerate(pods))))


ROWS = [
    # (what the row is about, the pod, the verdict, words that its message must have)
    ("ended well", ENDED_WELL, Verdict.SUCCEEDED, "exit code 0"),
    ("exit 0 without a report", replace(ENDED_WELL, report=None), Verdict.USER_ERROR, "no report"),
    ("reported device OOM", failed(85, "device-oom", "CUDA out of memory"), Verdict.DEVICE_OOM, "CUDA out of memory"),
    ("device OOM with the user's exit code", failed(1, "device-oom"), Verdict.DEVICE_OOM, "device-oom"),
    ("device OOM, report lost", failed(85), Verdict.DEVICE_OOM, "GPU memory"),
    ("reported host OOM", failed(86, "host-oom", "pinned memory"), Verdict.HOST_OOM, "pinned memory"),
    ("host OOM, report lost", failed(86), Verdict.HOST_OOM, "host memory"),
    ("OOMKilled", replace(failed(137), exit_reason="OOMKilled"), Verdict.HOST_OOM, "limit"),
    ("137 without OOMKilled", failed(137), Verdict.HOST_OOM, "host ran out of memory"),
    ("247 without OOMKilled", failed(247), Verdict.HOST_OOM, "host ran out of memory"),
    ("137 of a deleted pod", replace(failed(137), deleting=True), Verdict.DISRUPTED, "deleted"),
    ("terminated from outside", failed(143), Verdict.DISRUPTED, "outside"),
    ("SIGTERM reported", failed(143, "terminated", "SIGTERM"), Verdict.DISRUPTED, "SIGTERM"),
    ("evicted", replace(failed(137), reason="Evicted", message="low on disk"), Verdict.DISRUPTED, "low on disk"),
    ("preempted", replace(failed(143), reason="Preempted"), Verdict.DISRUPTED, "Preempted"),
    ("node shut down", replace(failed(143), reason="NodeShutdown"), Verdict.DISRUPTED, "NodeShutdown"),
    ("node lost, by its reason", replace(RUNNING, reason="NodeLost"), Verdict.DISRUPTED, "node is lost"),
    ("node lost, by the operator's clock", replace(RUNNING, node_lost=True), Verdict.DISRUPTED, "node is lost"),
    ("pod gone", replace(RUNNING, present=False), Verdict.DISRUPTED, "gone"),
    (
        "drained",
        replace(RUNNING, conditions=(PodCondition("DisruptionTarget", "True", "EvictionByEvictionAPI", "drain"),)),
        Verdict.DISRUPTED,
        "EvictionByEvictionAPI: drain",
    ),
    (
        "refused by the kubelet",
        replace(PENDING, phase="Failed", reason="OutOfnvidia.com/gpu"),
        Verdict.DISRUPTED,
        "OutOfnvidia.com/gpu",
    ),
    ("failed for no known reason", replace(PENDING, phase="Failed", reason="Odd"), Verdict.DISRUPTED, "Odd"),
    ("reported hang", failed(87, "hung", "no step for 90 s"), Verdict.HUNG, "no step for 90 s"),
    ("hang, report lost", failed(87), Verdict.HUNG, "no optimizer step"),
    ("reported user error", failed(3, "error", "ValueError: x"), Verdict.USER_ERROR, "ValueError: x"),
    (
        "a GPU that is broken",
        failed(1, "error", "AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
        Verdict.DISRUPTED,
        "uncorrectable ECC error",
    ),
    (
        "a GPU that is broken, told by the log of a worker that was killed",
        failed(134, "killed", "[rank0] CUDA error: uncorrectable NVLink error detected during the execution"),
        Verdict.DISRUPTED,
        "uncorrectable NVLink error",
    ),
    ("bad input", failed(2, "bad-input", "no such script"), Verdict.USER_ERROR, "no such script"),
    ("bad input, report lost", failed(88), Verdict.USER_ERROR, "cannot work"),
    ("another plan, seen early", failed(89, "plan-not-applied", "8, not 4"), Verdict.PLAN_NOT_APPLIED, "8, not 4"),
    ("another plan, report lost", failed(89), Verdict.PLAN_NOT_APPLIED, "otherwise than its plan"),
    ("a worker killed", failed(137, "killed", "rank 3: SIGKILL"), Verdict.HOST_OOM, "137"),
    ("a worker crashed", failed(139, "killed", "rank 3: SIGSEGV"), Verdict.USER_ERROR, "rank 3: SIGSEGV"),
    ("exit code alone", failed(3), Verdict.USER_ERROR, "exit code 3"),
    ("the template's own deadline", replace(failed(137), reason="DeadlineExceeded"), Verdict.USER_ERROR, "Deadline"),
    (
        "told to stop at the template's own deadline",
        replace(failed(143, "terminated", "SIGTERM"), reason="DeadlineExceeded"),
        Verdict.USER_ERROR,
        "Deadline",
    ),
    (
        "out of memory before its deadline",
        replace(failed(85, "device-oom"), reason="DeadlineExceeded"),
        Verdict.DEVICE_OOM,
        "device-oom",
    ),
    ("no such python", replace(failed(128), exit_reason="StartError"), Verdict.IMAGE_ERROR, "StartError"),
    ("runner not copied", replace(PENDING, phase="Failed", init_exit_code=1), Verdict.IMAGE_ERROR, "init container"),
    ("image back-off", waiting("ImagePullBackOff", "x:y not found"), Verdict.IMAGE_ERROR, "x:y not found"),
    ("image pull", waiting("ErrImagePull"), Verdict.IMAGE_ERROR, "ErrImagePull"),
    ("image name", waiting("InvalidImageName"), Verdict.IMAGE_ERROR, "InvalidImageName"),
    ("config missing", waiting("CreateContainerConfigError", "no secret"), Verdict.IMAGE_ERROR, "no secret"),
    ("no node fits", held("Unschedulable", "0/3 nodes"), Verdict.UNSCHEDULABLE, "Unschedulable: 0/3 nodes"),
    ("gated", held("SchedulingGated", "waiting for gates"), Verdict.QUEUED, "waiting for gates"),
    ("gang", held("Unschedulable", "pod group is not ready, 1 Pending"), Verdict.QUEUED, "not ready"),
]


@pytest.mark.parametrize(("pod", "verdict", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_table_of_verdicts_holds(pod: PodObservation, verdict: Verdict, words: str) -> None:
    found = verdict_of(pod)
    assert found is not None
    assert found.verdict is verdict
    assert words in found.message


def test_a_refusal_of_the_api_server_is_quoted() -> None:
    refusal = 'pods "a" is forbidden: exceeded quota: gpus'
    assert conclude(RunObservation((PENDING,), rejection=refusal)) == Conclusion(Verdict.UNSCHEDULABLE, None, refusal)


def test_a_run_that_goes_on_has_no_verdict_until_it_is_overdue() -> None:
    for pods in [(RUNNING,), (PENDING,), (ENDED_WELL, RUNNING), (waiting("ContainerCreating"),), ()]:
        assert verdict_of(*pods) is None
        late = conclude(RunObservation(pods, overdue=True))
        assert late is not None
        assert late.verdict is Verdict.HUNG


def test_a_pod_ended_by_its_deadline_has_hung() -> None:
    told = replace(failed(143, "terminated", "SIGTERM"), reason="DeadlineExceeded", message="too long")
    for pod in (told, replace(RUNNING, phase="Failed", reason="DeadlineExceeded", message="too long")):
        late = conclude(RunObservation((pod,), overdue=True))
        assert late == Conclusion(Verdict.HUNG, 0, "DeadlineExceeded: too long")


@pytest.mark.parametrize("pod", [ENDED_WELL, failed(85, "device-oom"), failed(86, "host-oom")])
def test_a_peak_under_another_plan_is_no_measurement(pod: PodObservation) -> None:
    other = replace(pod, mismatch="microBatch: 8 applied, 4 planned")
    assert verdict_of(ENDED_WELL if pod is ENDED_WELL else RUNNING, other) == Conclusion(
        Verdict.PLAN_NOT_APPLIED, 1, "microBatch: 8 applied, 4 planned"
    )


def test_a_user_error_stays_the_verdict_under_another_applied_plan() -> None:
    pod = replace(failed(1, "error", "KeyError"), mismatch="microBatch")
    assert verdict_of(pod) == Conclusion(Verdict.USER_ERROR, 0, "KeyError")


def test_an_nccl_abort_after_a_peers_out_of_memory_is_its_echo() -> None:
    abort = failed(1, "error", "NCCL communicator was aborted", order=1)
    oom = replace(failed(85, "device-oom", "CUDA out of memory", order=0), finished_at_seconds=53.0)
    assert verdict_of(abort, oom) == Conclusion(Verdict.DEVICE_OOM, 1, "CUDA out of memory")


def test_an_out_of_memory_that_follows_an_nccl_timeout_is_its_echo() -> None:
    timeout = failed(1, "error", "NCCL timeout", order=0)
    bogus = failed(85, "device-oom", "Tried to allocate more than 1EB memory", order=1)
    assert verdict_of(bogus, timeout) == Conclusion(Verdict.USER_ERROR, 1, "NCCL timeout")


def test_a_pod_killed_without_a_report_is_the_cause_of_its_peers_abort() -> None:
    abort = failed(1, "error", "NCCL: connection reset", order=0)
    killed = replace(failed(137), exit_reason="OOMKilled", finished_at_seconds=54.0)
    lost = replace(RUNNING, node_lost=True)
    assert verdict_of(abort, killed, lost) == Conclusion(Verdict.HOST_OOM, 1, OOM_KILLED)
    assert verdict_of(abort, lost) == Conclusion(Verdict.DISRUPTED, 1, "its node is lost")


def test_the_pod_that_ended_long_before_is_the_cause() -> None:
    first = failed(1, "error", "KeyError")
    later = replace(failed(85, "device-oom"), finished_at_seconds=61.0)
    assert verdict_of(later, first) == Conclusion(Verdict.USER_ERROR, 1, "KeyError")
    at_once = replace(later, finished_at_seconds=60.0)
    assert verdict_of(at_once, first) == Conclusion(Verdict.DEVICE_OOM, 0, "the runner reported 'device-oom'")


def test_a_rendezvous_that_times_out_because_a_peer_never_started_is_its_echo() -> None:
    alone = failed(1, "error", "rendezvous timed out")
    for pod, verdict in [
        (held("Unschedulable"), Verdict.UNSCHEDULABLE),
        (waiting("ErrImagePull"), Verdict.IMAGE_ERROR),
    ]:
        found = verdict_of(alone, pod)
        assert found is not None
        assert (found.verdict, found.pod_index) == (verdict, 1)


def test_a_clean_exit_after_sigterm_is_no_success() -> None:
    stopped = replace(ENDED_WELL, report=Report("terminated", message="SIGTERM"), deleting=True)
    assert verdict_of(stopped) == Conclusion(Verdict.DISRUPTED, 0, "SIGTERM")
    assert verdict_of(replace(ENDED_WELL, deleting=True)) == Conclusion(
        Verdict.SUCCEEDED, None, "the command ended with exit code 0"
    )


def test_a_probe_is_measured_on_all_of_its_pods_and_a_training_that_ended_has_ended() -> None:
    pods = (ENDED_WELL, replace(ENDED_WELL, index=1, report=None))
    probe, train = (conclude(RunObservation(pods, is_probe=is_probe)) for is_probe in (True, False))
    assert probe is not None
    assert train is not None
    assert (probe.verdict, probe.pod_index) == (Verdict.USER_ERROR, 1)
    assert probe.message.endswith("no report of it: the runner was not part of it on node 1")
    assert train.verdict is Verdict.SUCCEEDED


words = st.sampled_from(
    ["", "Unschedulable", "SchedulingGated", "Evicted", "StartError", "OOMKilled", "\x00odd", "pod group"]
)
conditions = st.builds(
    PodCondition,
    st.sampled_from(["PodScheduled", "DisruptionTarget", "Odd"]),
    st.sampled_from(["True", "False", "?"]),
    words,
    words,
)
reports = st.builds(
    Report,
    st.sampled_from(["succeeded", "device-oom", "host-oom", "hung", "error", "terminated", "killed", "nonsense"]),
    words,
)
pods = st.builds(
    PodObservation,
    index=st.integers(0, 3),
    present=st.booleans(),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", ""]),
    reason=words,
    conditions=st.lists(conditions, max_size=2).map(tuple),
    deleting=st.booleans(),
    node_lost=st.booleans(),
    waiting_reason=words | st.just("ErrImagePull"),
    init_exit_code=st.sampled_from([0, 0, 1]),
    exit_code=st.none() | st.sampled_from([0, 1, 85, 86, 87, 128, 137, 143, 247, 255]),
    exit_reason=words,
    finished_at_seconds=st.none() | st.floats(0, 100),
    report=st.none() | reports,
    failure_order=st.none() | st.integers(-2, 3),
    mismatch=words,
)
runs = st.builds(RunObservation, st.lists(pods, max_size=4).map(tuple), words, st.booleans(), st.booleans())


@given(runs)
def test_everything_that_ended_has_exactly_one_verdict(run: RunObservation) -> None:
    found = conclude(run)
    assert found == conclude(run)
    over = run.overdue or run.rejection or (run.pods and all(pod.exit_code is not None for pod in run.pods))
    if over:
        assert found is not None
    if found is not None:
        assert found.verdict in Verdict
        assert found.pod_index in {None, *(pod.index for pod in run.pods)}


@given(runs, st.permutations(range(4)))
def test_the_order_in_which_pods_are_listed_does_not_matter(run: RunObservation, order: list[int]) -> None:
    listed = tuple(replace(pod, index=i) for i, pod in enumerate(run.pods))
    shuffled = tuple(sorted(listed, key=lambda pod: order[pod.index]))
    one, other = conclude(replace(run, pods=listed)), conclude(replace(run, pods=shuffled))
    assert (one and one.verdict) == (other and other.verdict)
