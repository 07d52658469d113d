"""Volumes of the cluster that devcluster makes: every claim gets one, and it goes with the claim."""

from __future__ import annotations

from typing import Any

import pytest
from pods import Cluster, container, eventually, pod

from dev.cluster.layout import VOLUMES

CLAIMS = 15


@pytest.mark.usefixtures("devcluster")
def test_more_than_ten_claims_are_bound_and_deleted(cluster: Cluster, namespace: str) -> None:
    for number in range(CLAIMS):
        resources = {"requests": {"storage": "20Gi"}}
        body = {
            "metadata": {"name": f"job-{number}"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources},
        }
        cluster.core.create_namespaced_persistent_volume_claim(namespace, body)

    def claims() -> Any:
        return cluster.core.list_namespaced_persistent_volume_claim(namespace).items

    eventually(lambda: {claim.status.phase for claim in claims()} == {"Bound"}, f"{CLAIMS} claims to be bound")
    directories = [VOLUMES / claim.spec.volume_name for claim in claims()]
    assert len(set(directories)) == CLAIMS

    mounts = [{"name": "checkpoints", "mountPath": "/checkpoints"}]
    writer = container("open('/checkpoints/step-1', 'w')", volumeMounts=mounts, securityContext={"runAsUser": 65532})
    volume = {"name": "checkpoints", "persistentVolumeClaim": {"claimName": f"job-{CLAIMS - 1}"}}
    ended = cluster.finish(namespace, pod("writer", writer, volumes=[volume]))
    assert ended.status.phase == "Succeeded", cluster.log(namespace, "writer")
    assert sum((directory / "step-1").exists() for directory in directories) == 1

    cluster.core.delete_namespace(namespace)
    eventually(lambda: not any(directory.exists() for directory in directories), "the directories to go")
    names = {directory.name for directory in directories}
    eventually(
        lambda: names.isdisjoint(each.metadata.name for each in cluster.core.list_persistent_volume().items),
        "the volumes to go",
    )
