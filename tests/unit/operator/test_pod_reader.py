"""What a decision sees of a pod, from the API server's object."""

from __future__ import annotations

from typing import Any

import pytest

from memtune.controller.observation import PodCondition, PodObservation
from memtune.wire.report import Ending
from memtune_operator.pods.names import ANNOTATION_PLAN
from memtune_operator.pods.pod_reader import gone, held_seconds, index_of, observe, owned_by, run_of
from memtune_operator.pods.timestamps import seconds_of

GPU = "nvidia.com/gpu"
NOW = seconds_of("2026-01-01T01:00:00Z")
REPORT = '{"version":1,"ending":"device-oom","exitCode":85,"failureOrder":2}'


def pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    trainer = {"name": "train", "resources": {"limits": {GPU: "1"}}}
    return {
        "metadata": {"name": "llama-train-0-1", "uid": "p", **metadata},
        "spec": {"nodeName": "a", "containers": [{"name": "proxy"}, trainer]},
        "status": status or {},
    }


def ended(**terminated: Any) -> dict[str, Any]:
    states = [{"name": "proxy", "state": {"running": {}}}, {"name": "train", "state": {"terminated": terminated}}]
    return {"phase": "Running", "containerStatuses": states}


def seen(status: dict[str, Any] | None = None, **metadata: Any) -> PodObservation:
    return observe(pod(status, **metadata), 1, GPU, None, NOW, 180)


def test_a_pod_that_was_just_made_is_pending() -> None:
    assert seen() == PodObservation(index=1, name="llama-train-0-1", uid="p", node="a")


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        (None, 0.0),
        ({"waiting": {"reason": "ContainerCreating"}}, 0.0),
        ({"running": {"startedAt": "2026-01-01T00:50:00Z"}}, 600.0),
        ({"terminated": {"startedAt": "2026-01-01T00:10:00Z", "finishedAt": "2026-01-01T00:30:00Z"}}, 1200.0),
        ({"terminated": {"reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}}, None),
        ({"terminated": {"startedAt": "2026-01-01T00:10:00Z", "finishedAt": None}}, None),
    ],
)
def test_a_deleted_pod_is_charged_for_its_running_time(state: dict[str, Any] | None, seconds: float | None) -> None:
    """Sidecars hold no GPUs, however long they ran."""
    states = [{"name": "proxy", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]
    states += [{"name": "train", "state": state}] if state else []
    assert held_seconds(gone(pod({"containerStatuses": states}), NOW), GPU) == seconds
    assert held_seconds(gone({"metadata": {}}, NOW), GPU) == 0.0


def test_a_pod_says_which_plan_it_was_made_for() -> None:
    plan = "bf16-z2-sel-mb4x8"
    assert seen(annotations={ANNOTATION_PLAN: plan}).plan == plan


def test_only_the_wrapped_container_decides_how_a_run_ended() -> None:
    found = seen(
        ended(exitCode=85, reason="Error", startedAt="2026-01-01T00:00:00Z", finishedAt="2026-01-01T00:01:00Z")
    )
    assert (found.exit_code, found.exit_reason) == (85, "Error")
    assert found.finished_at_seconds is not None
    assert found.started_at_seconds is not None
    assert found.finished_at_seconds - found.started_at_seconds == 60


def test_the_report_is_read_and_garbage_is_none() -> None:
    found = seen(ended(exitCode=85, message=REPORT))
    assert found.report is not None
    assert (found.report.ending, found.failure_order) == (Ending.DEVICE_OOM, 2)
    assert seen(ended(exitCode=1, message="x" * 1_000_000)).report is None
    assert seen(ended(exitCode=1, message="Segmentation fault")).report is None


def test_the_waiting_reason_is_the_clusters_message() -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    status = {
        "containerStatuses": [
            {"name": "proxy", "state": {"waiting": {"reason": "PodInitializing"}}},
            {"name": "train", "state": {"waiting": waiting}},
        ]
    }
    assert (seen(status).waiting_reason, seen(status).waiting_message) == ("ImagePullBackOff", "not found")


def test_a_failed_init_container_is_reported() -> None:
    status = {"initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 3}}}]}
    assert seen(status).init_exit_code == 3


def test_conditions_and_deletion_are_read() -> None:
    status = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2"}]}
    found = seen(status, deletionTimestamp="2026-01-01T00:59:00Z")
    assert found.conditions == (PodCondition("PodScheduled", "False", "Unschedulable", "0/2"),)
    assert found.deleting


def test_pods_belong_to_their_owner_and_not_to_a_label() -> None:
    ours = pod(ownerReferences=[{"uid": "other"}, {"uid": "job", "controller": True}])
    forged = pod(labels={"memtune.dev/job": "llama"}, ownerReferences=[{"uid": "job"}])
    assert owned_by([ours, forged, pod()], "job") == [ours]


def test_invalid_labels_are_tolerated() -> None:
    labelled = pod(labels={"memtune.dev/run": "llama-train-0", "memtune.dev/index": "1"})
    assert (run_of(labelled), index_of(labelled)) == ("llama-train-0", 1)
    assert index_of(pod(labels={"memtune.dev/index": "first"})) is None
    assert run_of(pod()) == ""
