"""The pod of an emulated probe, against the Kubernetes client's models: the user's command without its GPUs.

After an intended change, rewrite the golden file with ``MEMTUNE_WRITE_GOLDEN=1 pytest tests/contract``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from kubernetes_models import validate

from memtune.api import Job, load_job
from memtune.gpus.gpu import find
from memtune.plans.plan import Plan
from memtune.units import GIB
from memtune.wire.run import Run, RunKind
from memtune_operator.pods import preflight
from memtune_operator.pods.bootstrap import BOOTSTRAP
from memtune_operator.pods.emulated_pod import emulated_pod
from memtune_operator.pods.run_objects import run_objects
from memtune_operator.pods.security_policy import Policy

GOLDEN = Path(__file__).parents[2] / "golden" / "emulated-pod.json"
RUNNER_IMAGE = "registry.example/memtune-runner:1"
PLAN = Plan.parse("bf16-z3-none-mb2x4")


def job(container: dict[str, Any] | None = None, pod: dict[str, Any] | None = None, **spec: Any) -> Job:
    trainer = {
        "name": "trainer",
        "image": "registry.example/team/train:1",
        "command": ["torchrun", "train.py", "--output", "/checkpoints/run"],
        "env": [{"name": "HF_HOME", "value": "/cache"}],
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": "8", "memory": "500Gi"}},
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
        **(container or {}),
    }
    fetch = {"name": "fetch", "image": "fetch:1", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}}}
    template = {
        "metadata": {"labels": {"team": "nlp"}},
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "runtimeClassName": "nvidia",
            "initContainers": [fetch],
            "containers": [trainer, {"name": "sidecar", "image": "proxy:1"}],
            "volumes": [{"name": "code", "configMap": {"name": "code"}}],
            **(pod or {}),
        },
    }
    data = {
        "apiVersion": "memtune.dev/v1alpha1",
        "kind": "MemoryTunedJob",
        "metadata": {"name": "own", "namespace": "research", "uid": "6e1c1d1e-0000-4000-8000-000000000001"},
        "spec": {
            "model": {"architecture": {"hiddenSize": 256, "layers": 2, "heads": 4, "vocabSize": 512, "ffnSize": 512}},
            "training": {"globalBatchSize": 128, "sequenceLength": 128},
            "resources": {"nodes": 2, "gpusPerNode": 8, "gpuProduct": "NVIDIA-H100-80GB-HBM3"},
            "tuning": {"emulation": "Auto"},
            "checkpoint": {"path": "/checkpoints", "volume": {"persistentVolumeClaim": {"claimName": "mine"}}},
            "template": template,
            **spec,
        },
    }
    return load_job(data)


def pod_of(given: Job, is_restricted: bool = False) -> dict[str, Any]:
    run = Run(RunKind.EMULATE, 3, PLAN, host_request_bytes=6 * GIB, gpu=find("h100-80gb"))
    return emulated_pod(given, run, RUNNER_IMAGE, is_restricted)


def variables(pod: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}


def test_the_pod_matches_the_golden_file() -> None:
    text = json.dumps(pod_of(job()), indent=1, sort_keys=True) + "\n"
    if os.environ.get("MEMTUNE_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("is_restricted", [False, True])
def test_the_api_server_knows_every_field(is_restricted: bool) -> None:
    validate(pod_of(job(), is_restricted), "V1Pod", "pod")


def test_it_asks_for_no_gpu_and_for_no_node_that_has_one() -> None:
    spec = pod_of(job())["spec"]
    assert "nvidia" not in json.dumps({**spec, "containers": [{**spec["containers"][0], "env": []}]})
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert not spec.keys() & {"tolerations", "affinity", "runtimeClassName", "hostname", "subdomain"}


def test_it_runs_the_users_command_as_a_probe_of_all_ranks_on_an_emulated_gpu() -> None:
    pod = pod_of(job())
    (container,) = pod["spec"]["containers"]
    assert container["command"][1:] == [
        *("-c", BOOTSTRAP, "launch", "--", "torchrun", "train.py", "--output", "/checkpoints/run"),
    ]
    told = variables(pod)
    wanted = {
        "MEMTUNE_RUN": "own-emulate-3",
        "MEMTUNE_RUN_KIND": "probe",
        "MEMTUNE_DEVICE": "emulated",
        "MEMTUNE_GPU_NAME": "h100-80gb",
        "MEMTUNE_GPU_MEMORY_BYTES": str(find("h100-80gb").usable_bytes),
        "MEMTUNE_NODES": "2",
        "MEMTUNE_GPUS_PER_NODE": "8",
        "MEMTUNE_METRICS_PORT": "",
        "MEMTUNE_EMULATED_CACHE": "/memtune/emulated",
    }
    assert {name: told[name] for name in wanted} == wanted


def test_no_real_run_resumes_from_its_checkpoints() -> None:
    spec = pod_of(job())["spec"]
    (checkpoints,) = [volume for volume in spec["volumes"] if volume["name"] == "memtune-checkpoints"]
    assert checkpoints == {"name": "memtune-checkpoints", "emptyDir": {}}
    own = {"volumeMounts": [{"name": "data", "mountPath": "/data/"}]}
    mounted = job(own, {"volumes": [{"name": "data", "nfs": {}}]}, checkpoint={"path": "/data"})
    mounts = pod_of(mounted)["spec"]["containers"][0]["volumeMounts"]
    assert [each["name"] for each in mounts if each["mountPath"].rstrip("/") == "/data"] == ["memtune-checkpoints"]


ATTEMPT = Run(RunKind.TRAIN, 2, PLAN, avoided_nodes=("broken",))


def emulated_job(**spec: Any) -> Job:
    resources = {"nodes": 2, "gpusPerNode": 8, "gpuProduct": "NVIDIA-H100-80GB-HBM3", "device": "emulated"}
    return job(**{"resources": resources, "tuning": {}, **spec})


@pytest.mark.parametrize("is_restricted", [False, True])
def test_a_run_of_a_job_on_emulated_gpus_is_one_pod_without_a_gpu(is_restricted: bool) -> None:
    (pod,) = run_objects(emulated_job(), ATTEMPT, RUNNER_IMAGE, is_restricted)
    validate(pod, "V1Pod", "pod")
    spec = pod["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"memory": "500Gi"}
    assert spec["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["broken"]}]}
    assert not spec.keys() & {"tolerations", "runtimeClassName", "activeDeadlineSeconds"}
    wanted = {
        "MEMTUNE_RUN_KIND": "train",
        "MEMTUNE_DEVICE": "emulated",
        "MEMTUNE_NODES": "2",
        "MEMTUNE_METRICS_PORT": "9400",
        "MEMTUNE_EMULATED_CACHE": "/memtune/emulated",
    }
    told = variables(pod)
    assert {name: told[name] for name in wanted} == wanted


def test_a_probe_of_an_emulated_job_has_a_deadline() -> None:
    (pod,) = run_objects(emulated_job(), Run(RunKind.PROBE, 1, PLAN), RUNNER_IMAGE)
    assert pod["spec"]["activeDeadlineSeconds"] > 600


@pytest.mark.parametrize(
    ("mount", "path", "wanted"),
    [
        ({"mountPath": "/data"}, "/data", {"mountPath": "/data", "subPath": "memtune-emulated"}),
        (
            {"mountPath": "/data", "subPath": "team"},
            "/data/run/saved",
            {"mountPath": "/data/run/saved", "subPath": "team/run/saved/memtune-emulated"},
        ),
        (
            {"mountPath": "/data/", "subPathExpr": "$(USER)"},
            "/data",
            {"mountPath": "/data", "subPathExpr": "$(USER)/memtune-emulated"},
        ),
    ],
)
def test_an_emulated_job_saves_beside_real_checkpoints(
    mount: dict[str, str], path: str, wanted: dict[str, str]
) -> None:
    own = {"volumeMounts": [{"name": "data", **mount}]}
    mounted = emulated_job(
        template={
            "spec": {
                "containers": [{"name": "trainer", "image": "train:1", "command": ["torchrun", "train.py"], **own}],
                "volumes": [{"name": "data", "nfs": {"server": "files", "path": "/"}}],
            }
        },
        checkpoint={"path": path},
    )
    (pod,) = run_objects(mounted, ATTEMPT, RUNNER_IMAGE)
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    assert [each for each in mounts if each["mountPath"].rstrip("/") == path] == [{"name": "data", **wanted}]


def test_an_emulated_job_saves_on_its_checkpoint_volume() -> None:
    (pod,) = run_objects(emulated_job(), ATTEMPT, RUNNER_IMAGE)
    (mount,) = [each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["mountPath"] == "/checkpoints"]
    assert mount == {"name": "memtune-checkpoints", "mountPath": "/checkpoints", "subPath": "memtune-emulated"}
    claimed = {"name": "memtune-checkpoints", "persistentVolumeClaim": {"claimName": "mine"}}
    assert claimed in pod["spec"]["volumes"]


def test_an_emulated_job_needs_no_gang() -> None:
    gang = {"spec": {"schedulerName": "volcano", "containers": [{"name": "trainer", "image": "i:1", "command": ["x"]}]}}
    found = preflight.check(emulated_job(template=gang, launcher="JobSet"), Policy(), RUNNER_IMAGE, ())
    assert found.blocker is None
    assert found.pod is not None
    assert "schedulerName" not in found.pod["spec"]


def test_an_emulated_run_has_no_service() -> None:
    run = Run(RunKind.EMULATE, 1, PLAN, gpu=find("h100-80gb"))
    assert [each["kind"] for each in run_objects(job(), run, RUNNER_IMAGE)] == ["Pod"]
