"""The script of `helm test`, against an API with prepared answers."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import Sequence
from typing import Any

import pytest
from helm_chart import CHART, objects, of_kind, only

from memtune.api import load_job

SCRIPT = CHART / "files" / "test_job.py"
STALLED = {"type": "Stalled", "status": "True", "reason": "Unschedulable", "message": "no node has nvidia.com/gpu"}


class Api:
    """The part of the Kubernetes client that the script uses; each read returns the next status."""

    def __init__(self, statuses: Sequence[dict[str, Any]]) -> None:
        self._statuses = list(statuses)
        self.deleted: list[str] = []

    async def create_namespaced_custom_object(self, *where: str) -> dict[str, Any]:
        assert where[:4] == ("memtune.dev", "v1alpha1", "lab", "memorytunedjobs")
        return {"metadata": {"name": "rel-test-x"}}

    async def get_namespaced_custom_object(self, *where: str) -> dict[str, Any]:
        assert where[4] == "rel-test-x"
        return {"status": self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]}

    async def delete_namespaced_custom_object(self, *where: str) -> None:
        self.deleted.append(where[4])


def follow(api: Api, seconds: float) -> str:
    script = runpy.run_path(str(SCRIPT))
    script["follow"].__globals__["POLL_SECONDS"] = 0.0
    told: str = asyncio.run(script["follow"](api, {"metadata": {"namespace": "lab"}}, seconds))
    return told


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([{}, {"phase": "Predicting"}, {"phase": "Succeeded", "message": "predicted"}], "Succeeded: predicted"),
        ([{"phase": "Failed", "message": "nothing fits"}], "Failed: nothing fits"),
        (
            [{"phase": "Probing", "conditions": [STALLED]}],
            "Probing, stalled by Unschedulable: no node has nvidia.com/gpu",
        ),
    ],
)
def test_it_prints_how_the_job_ended_and_deletes_it(statuses: list[dict[str, Any]], expected: str) -> None:
    api = Api(statuses)
    assert follow(api, seconds=60) == expected
    assert api.deleted == ["rel-test-x"]


def test_it_deletes_a_job_that_does_not_end() -> None:
    api = Api([{"phase": "Pending", "conditions": [{**STALLED, "status": "False"}]}])
    assert "has not ended after 0.05 s" in follow(api, seconds=0.05)
    assert api.deleted == ["rel-test-x"]


@pytest.mark.parametrize("mode", ["PredictOnly", "Probe"])
def test_its_job_is_one_that_the_operator_takes(mode: str) -> None:
    (container,) = only(objects({"test": {"mode": mode}}), "Pod")["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    job = json.loads(variables["TEST_JOB"])
    job["metadata"]["name"] = job["metadata"].pop("generateName") + "x7k2p"
    loaded = load_job(job)
    assert (loaded.spec.tuning.mode, loaded.spec.resources.device) == (mode, "virtual")
    assert container["command"][2].strip() == SCRIPT.read_text().strip()


@pytest.mark.parametrize(
    ("values", "namespace"),
    [
        ({}, "memtune-system"),
        ({"policy": {"allowedNamespaces": ["lab", "memtune-system"]}}, "memtune-system"),
        ({"policy": {"allowedNamespaces": ["lab"]}}, "lab"),
        ({"rbac": {"scope": "namespaces", "namespaces": ["a", "b"]}}, "a"),
        ({"rbac": {"scope": "namespaces", "namespaces": ["a", "b"]}, "policy": {"allowedNamespaces": ["b"]}}, "b"),
        (
            {"rbac": {"scope": "namespaces", "namespaces": ["a", "b"]}, "policy": {"deniedNamespaces": ["a"]}},
            "b",
        ),
        ({"policy": {"allowedNamespaces": ["lab"]}, "test": {"namespace": "mine"}}, "mine"),
    ],
)
def test_its_job_is_where_the_operator_runs_jobs(values: dict[str, Any], namespace: str) -> None:
    (container,) = only(objects(values), "Pod")["spec"]["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert json.loads(variables["TEST_JOB"])["metadata"]["namespace"] == namespace


def test_everything_of_the_test_is_removed_once_it_passed() -> None:
    made = [each for kind in ("Pod", "Role", "RoleBinding", "ServiceAccount") for each in of_kind(objects({}), kind)]
    hooked = [each for each in made if each["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]
    assert {each["metadata"]["name"] for each in hooked} == {"rel-memtune-test"}
    assert len(hooked) == 4
    for each in hooked:
        assert "hook-succeeded" in each["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
