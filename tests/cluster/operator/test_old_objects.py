"""Objects that an older CRD let in: one that cannot be read is told of once, and other jobs go on."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from kubernetes import client
from operator_process import CRD, Jobs, OperatorProcess, install_crd
from pods import Cluster, eventually
from reporter_jobs import FIXED, reporter_job

ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
# By name: what an older CRD took in place of a good job's fields, and the path that is told.
UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "batch-was-a-text": (
        {"training": {"globalBatchSize": "16", "sequenceLength": 256}},
        "spec.training.globalBatchSize",
    ),
    "no-training-yet": ({"training": None}, "spec.training"),
    "mode-was-another": ({"tuning": {"mode": "Guess"}}, "spec.tuning.mode"),
}
# Longer than the operator waits before it looks again at what it could not write.
_PATIENCE_SECONDS = 20


@contextmanager
def older_crd(connection: client.ApiClient, jobs: Jobs) -> Iterator[None]:
    """The API server takes any spec, as long as this lasts."""
    api: Any = client.ApiextensionsV1Api(connection)
    older = copy.deepcopy(CRD)
    older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = ANYTHING
    name = older["metadata"]["name"]
    try:
        api.patch_custom_resource_definition(name, [{"op": "replace", "path": "/spec", "value": older["spec"]}])
        eventually(lambda: is_taken(jobs), "the API server to take any spec")
        yield
    finally:
        install_crd(connection)
    eventually(lambda: not is_taken(jobs), "the API server to be strict again")


def is_taken(jobs: Jobs) -> bool:
    try:
        jobs.apply({**reporter_job("probe"), "spec": {"older": 1}}, dry_run="All")
    except client.ApiException as error:
        if error.status != 422:
            raise
        return False
    return True


def told(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """The messages of the events that say what is wrong with a job's spec."""
    events = cluster.core.list_namespaced_event(namespace).items
    return [each.message for each in events if each.involved_object.name == name and each.reason == "SpecInvalid"]


@pytest.mark.alone
@pytest.mark.slow
def test_objects_of_an_older_crd_are_reported_once_and_other_jobs_continue(
    cluster: Cluster, namespace: str, jobs: Jobs, operators: Callable[..., OperatorProcess]
) -> None:
    with older_crd(cluster.core.api_client, jobs):
        for name, (changes, _) in UNREADABLE.items():
            spec = {**reporter_job(name, tuning=FIXED)["spec"], **changes}
            jobs.apply({**reporter_job(name), "spec": {key: value for key, value in spec.items() if value is not None}})
        jobs.apply(reporter_job("has-more", tuning=FIXED, gpuCount=8))
    operator = operators()
    operator.start()
    # What this CRD does not know is dropped when the object is read: the rest is a good job.
    jobs.wait_for("has-more", "Succeeded")
    for name in UNREADABLE:
        eventually(partial(told, cluster, namespace, name), f"{name} to be told of", 30)
    time.sleep(_PATIENCE_SECONDS)
    for name, (_, path) in UNREADABLE.items():
        messages = told(cluster, namespace, name)
        assert len(messages) == 1, messages
        assert messages[0].startswith(f"{path}: ")
        assert jobs.status(name) == {}, "the API server takes no status of an object that its CRD refuses"
    assert [found.metadata.name for found in cluster.core.list_namespaced_pod(namespace).items] == [
        "has-more-train-1-0"
    ]
    for name in UNREADABLE:
        jobs.patch(name, training=reporter_job(name)["spec"]["training"], tuning=FIXED)
        jobs.wait_for(name, "Succeeded")
    assert "Traceback" not in operator.log()
