"""A run's objects, against golden files and the Kubernetes client's models.

After an intended change, rewrite the golden files with ``MEMTUNE_WRITE_GOLDEN=1 pytest tests/contract``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from crd_schemas import contract, refusals, schema_of
from kubernetes_models import validate
from runs_with_every_feature import CASES, PROBE, RUNNER_IMAGE, job

from memtune.wire import environment
from memtune_operator.pods import manifests

OTHERS = ("PodGroup", "JobSet")
GOLDEN = Path(__file__).parents[2] / "golden"


def built(case: str) -> list[dict[str, Any]]:
    return manifests.objects(*CASES[case], RUNNER_IMAGE)


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_made_as_the_golden_file_says(case: str) -> None:
    file = GOLDEN / f"{case}.json"
    text = json.dumps(built(case), indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("MEMTUNE_WRITE_GOLDEN"):
        file.write_text(text)
    assert file.read_text() == text


def variables(**resources: Any) -> dict[str, str]:
    """Return the variables of a probe's pod for these resources."""
    (pod,) = manifests.pods(job(resources=resources), PROBE, RUNNER_IMAGE)
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}


def test_a_rehearsal_has_the_memory_loss_of_its_virtual_gpu() -> None:
    shrink = {"afterStep": 30, "by": "25%"}
    told = variables(gpuMemory="2Gi", device="virtual", shrink=shrink)
    assert told[environment.SHRINK] == f"30:{3 * 2**29}"
    told = variables(gpuMemory="2Gi", device="virtual", shrink=shrink, memoryShare="50%")
    assert (told[environment.SHRINK], told[environment.MEMORY_SHARE]) == (f"30:{3 * 2**28}", "0.5")


def test_a_run_has_the_share_and_the_disk_of_its_job() -> None:
    plain = variables(gpuMemory="2Gi", device="virtual")
    assert (plain[environment.MEMORY_SHARE], plain[environment.NVME_PATH]) == ("", "")
    assert variables(nvmePath="/mnt/nvme")[environment.NVME_PATH] == "/mnt/nvme"


@pytest.mark.parametrize("case", CASES)
def test_the_kubernetes_client_knows_every_field(case: str) -> None:
    for manifest in built(case):
        if manifest["kind"] in OTHERS:
            validate(manifest["metadata"], "V1ObjectMeta", manifest["kind"])
        else:
            validate(manifest, f"V1{manifest['kind']}", manifest["kind"])


@pytest.mark.parametrize("case", ["gang-volcano", "gang-coscheduling", "job-set"])
def test_the_projects_that_make_groups_of_pods_know_every_field(case: str) -> None:
    (manifest,) = [each for each in built(case) if each["kind"] in OTHERS]
    group, kind = manifest["apiVersion"].partition("/")[0], manifest["kind"].lower()
    schema = schema_of(contract(f"{group}_{kind}s.yaml"))
    assert refusals(schema, manifest, kind) == []
    assert refusals(schema, {**manifest, "spec": {**manifest["spec"], "minMembers": 2}}, kind)


def test_the_kubernetes_client_knows_the_pod_of_a_job_set() -> None:
    (job_set,) = [each for each in built("job-set") if each["kind"] == "JobSet"]
    validate(job_set["spec"]["replicatedJobs"][0]["template"], "V1JobTemplateSpec", "JobSet")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "containers", 0, "commnad"), ["x"]),
        (("spec", "containers", 0, "command"), "x"),
        (("spec", "restartPolicy"), 1),
        (("spec", "containers", 0, "env", 0, "value"), 8),
        (("spec", "volumes", 0, "emptyDir", "size"), "1Gi"),
        (("metadata", "labels", "memtune.dev/index"), 0),
        (("spec", "containers", 0, "name"), None),
    ],
)
def test_the_validation_finds_manifests_that_the_api_server_would_refuse(path: tuple[Any, ...], value: Any) -> None:
    (pod,) = manifests.pods(*CASES["probe-built-in"], RUNNER_IMAGE)
    place: Any = pod
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises((AssertionError, ValueError)):
        validate(pod, "V1Pod", "Pod")
