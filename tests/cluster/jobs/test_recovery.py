"""Real training in real pods: recovered from an out-of-memory, spread over two nodes, suspended and gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from operator_process import Jobs
from pods import Cluster, eventually
from rehearsals import losses, quickstart, small

# The quickstart, quicker: of 128 MiB its GPU keeps 70.
_BATCH = {"globalBatchSize": 16, "sequenceLength": 64, "attention": "sdpa"}
_MEMORY = {"gpuMemory": "128Mi", "device": "virtual"}
_STEPS, _SHRINKS_AFTER = 40, 30
_SHRINK = {"afterStep": _SHRINKS_AFTER, "by": "45%"}
_SPACE = {"precision": ["fp32"], "checkpointing": ["none", "full"], "backends": ["ddp"]}
# Predicted to fit, as it does until the memory shrinks.
_OPTIMISTIC = {"mode": "Fixed", "plan": "fp32-ddp-none-mb16x1-sdpa", "space": _SPACE}
_ON_TWO = "fp32-ddp-none-mb4x1-sdpa"


@pytest.mark.usefixtures("operator")
def test_a_recovered_job_reaches_the_loss_of_an_undisturbed_one(
    cluster: Cluster, namespace: str, jobs: Jobs, images: dict[str, str], tmp_path: Path
) -> None:
    spec = {"training": _BATCH, "tuning": _OPTIMISTIC, **_longer(images["runner"])}
    jobs.apply(quickstart(tmp_path / "recovering", resources={**_MEMORY, "shrink": _SHRINK}, **spec))
    undisturbed = quickstart(tmp_path / "undisturbed", resources=_MEMORY, **spec)
    jobs.apply({**undisturbed, "metadata": {"name": "undisturbed"}})

    recovering = jobs.wait_for("quickstart", "Recovering", "Succeeded", "Failed")
    assert recovering["phase"] == "Recovering", recovering["message"]
    status = jobs.wait_for("quickstart", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    first, second = status["attempts"]
    assert (first["verdict"], second["verdict"]) == ("device-oom", "succeeded")
    assert (second["resume"], second["resumedSamples"]) == ("direct", _SHRINKS_AFTER * 16)
    assert second["plan"] != first["plan"]
    assert status["oomRetries"] == 1
    checkpoint = f"/checkpoints/memtune-step-{_SHRINKS_AFTER:08}-attempt-1"
    assert f"resumed from {checkpoint}" in cluster.log(namespace, f"{second['name']}-0")

    jobs.wait_for("undisturbed", "Succeeded")
    whole = losses(cluster, namespace, "undisturbed-train-1-0")
    again = losses(cluster, namespace, f"{second['name']}-0")
    assert sorted(again) == list(range(_SHRINKS_AFTER + 1, _STEPS + 1))
    assert again == pytest.approx({step: whole[step] for step in again}, rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_pods_on_two_nodes_train_together(
    cluster: Cluster, namespace: str, jobs: Jobs, two_nodes: tuple[str, str], tmp_path: Path
) -> None:
    resources = {"nodes": 2, "gpusPerNode": 1, "gpuMemory": "4Gi", "device": "virtual"}
    jobs.apply(small("pair", tmp_path / "checkpoints", _ON_TWO, resources=resources))
    status = jobs.wait_for("pair", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    assert [attempt["verdict"] for attempt in status["attempts"]] == ["succeeded"]
    pods = cluster.core.list_namespaced_pod(namespace).items
    assert sorted(pod.spec.node_name for pod in pods) == sorted(two_nodes)
    told = {each.name: each.value for each in pods[1].spec.containers[0].env}
    assert told["MEMTUNE_RENDEZVOUS"] == f"pair-train-1-0.pair-train-1.{namespace}.svc:29400"
    assert sorted(losses(cluster, namespace, "pair-train-1-0")) == list(range(1, 21))
    for pod in pods:
        assert '"world":2' in cluster.log(namespace, pod.metadata.name)


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_a_suspended_job_resumes_from_its_checkpoint(
    cluster: Cluster, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    # Large enough that there is time to suspend it between its first checkpoint and its end.
    slow = {"mode": "Fixed", "plan": "fp32-ddp-full-mb1x16-sdpa"}
    jobs.apply(quickstart(checkpoints, training=_BATCH, resources=_MEMORY, tuning=slow))
    eventually(lambda: list(checkpoints.glob("*/memtune-manifest.json")), "a complete checkpoint", 300)
    jobs.patch("quickstart", suspend=True)
    jobs.wait_for("quickstart", "Suspended", seconds=60)
    eventually(lambda: not _running(cluster, namespace), "no pod to run")
    assert jobs.condition("quickstart", "Suspended")["status"] == "True"

    jobs.patch("quickstart", suspend=False)
    status = jobs.wait_for("quickstart", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    last = status["attempts"][-1]
    assert last["resumedSamples"] >= 5 * 16
    again = losses(cluster, namespace, f"{last['name']}-0")
    assert sorted(again) == list(range(last["resumedSamples"] // 16 + 1, 21))
    assert (status.get("oomRetries", 0), status.get("disruptions", 0)) == (0, 0), "suspending costs no budget"


def _longer(image: str) -> dict[str, Any]:
    """The built-in trainer, for more steps than it takes unasked."""
    command = ["python3", "-m", "memtune_runner.trainer", "--steps", str(_STEPS)]
    container = {"name": "trainer", "image": image, "command": command}
    return {"template": {"spec": {"containers": [container]}}, "integration": "sdk"}


def _running(cluster: Cluster, namespace: str) -> list[str]:
    pods = cluster.core.list_namespaced_pod(namespace).items
    return [pod.metadata.name for pod in pods if pod.status.phase in ("Pending", "Running")]
