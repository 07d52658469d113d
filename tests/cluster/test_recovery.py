"""Real training in real pods: recovered from an out-of-memory, spread over two nodes, suspended and gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest
from operator_process import Jobs
from pods import Cluster, eventually
from rehearsals import losses, quickstart, small

# Predicted to fit into 256 MiB, as it does until the memory shrinks.
_OPTIMISTIC = "fp32-ddp-none-mb32x2-sdpa"
_ON_TWO = "fp32-ddp-none-mb4x1-sdpa"


@pytest.mark.usefixtures("operator")
def test_a_job_that_loses_memory_recovers_and_ends_with_the_loss_of_an_undisturbed_one(
    cluster: Cluster, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    fixed = {"mode": "Fixed", "plan": _OPTIMISTIC, "space": {"precision": ["fp32"], "backends": ["ddp"]}}
    undisturbed = quickstart(tmp_path / "undisturbed", tuning=fixed)
    shrinking = {**undisturbed["spec"]["resources"], "shrink": {"afterStep": 12, "by": "70%"}}
    jobs.apply(quickstart(tmp_path / "recovering", tuning=fixed, resources=shrinking))
    jobs.apply({**undisturbed, "metadata": {"name": "undisturbed"}})

    recovering = jobs.wait_for("quickstart", "Recovering", "Succeeded", "Failed", seconds=240)
    assert recovering["phase"] == "Recovering", recovering["message"]
    status = jobs.wait_for("quickstart", "Succeeded", "Failed", seconds=240)
    assert status["phase"] == "Succeeded", status["message"]
    first, second = status["attempts"]
    assert (first["verdict"], second["verdict"]) == ("device-oom", "succeeded")
    assert (second["resume"], second["resumedSamples"]) == ("direct", 10 * 64)
    assert second["plan"] != first["plan"]
    assert status["oomRetries"] == 1
    assert "resumed from /checkpoints/memtune-step-00000010-attempt-1" in cluster.log(namespace, f"{second['name']}-0")

    jobs.wait_for("undisturbed", "Succeeded", seconds=120)
    whole = losses(cluster, namespace, "undisturbed-train-1-0")
    again = losses(cluster, namespace, f"{second['name']}-0")
    assert sorted(again) == list(range(11, 21))
    assert again == pytest.approx({step: whole[step] for step in again}, rel=1e-5)


@pytest.mark.usefixtures("operator")
def test_the_pods_of_two_nodes_meet_by_name_and_train_as_one(
    cluster: Cluster, namespace: str, jobs: Jobs, two_nodes: tuple[str, str], tmp_path: Path
) -> None:
    resources = {"nodes": 2, "gpusPerNode": 1, "gpuMemory": "4Gi", "device": "virtual"}
    jobs.apply(small("pair", tmp_path / "checkpoints", _ON_TWO, resources=resources))
    status = jobs.wait_for("pair", "Succeeded", "Failed", seconds=180)
    assert status["phase"] == "Succeeded", status["message"]
    assert [attempt["verdict"] for attempt in status["attempts"]] == ["succeeded"]
    pods = cluster.core.list_namespaced_pod(namespace).items
    assert sorted(pod.spec.node_name for pod in pods) == sorted(two_nodes)
    told = {each.name: each.value for each in pods[1].spec.containers[0].env}
    assert told["MEMTUNE_RENDEZVOUS"] == f"pair-train-1-0.pair-train-1.{namespace}.svc:29400"
    assert sorted(losses(cluster, namespace, "pair-train-1-0")) == list(range(1, 21))
    for pod in pods:
        assert '"world":2' in cluster.log(namespace, pod.metadata.name)


@pytest.mark.usefixtures("operator")
def test_a_suspended_job_goes_on_from_its_checkpoint(
    cluster: Cluster, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    # Large enough that there is time to suspend it between its first checkpoint and its end.
    jobs.apply(quickstart(checkpoints, tuning={"mode": "Fixed", "plan": "fp32-ddp-full-mb16x4-sdpa"}))
    eventually(lambda: list(checkpoints.glob("*/memtune-manifest.json")), "a complete checkpoint", 180)
    jobs.patch("quickstart", suspend=True)
    jobs.wait_for("quickstart", "Suspended", seconds=60)
    eventually(lambda: not _running(cluster, namespace), "no pod to run")
    assert jobs.condition("quickstart", "Suspended")["status"] == "True"

    jobs.patch("quickstart", suspend=False)
    status = jobs.wait_for("quickstart", "Succeeded", "Failed", seconds=180)
    assert status["phase"] == "Succeeded", status["message"]
    last = status["attempts"][-1]
    assert last["resumedSamples"] >= 5 * 64
    again = losses(cluster, namespace, f"{last['name']}-0")
    assert sorted(again) == list(range(last["resumedSamples"] // 64 + 1, 21))
    assert (status.get("oomRetries", 0), status.get("disruptions", 0)) == (0, 0), "suspending costs no budget"


def _running(cluster: Cluster, namespace: str) -> list[str]:
    pods = cluster.core.list_namespaced_pod(namespace).items
    return [pod.metadata.name for pod in pods if pod.status.phase in ("Pending", "Running")]
