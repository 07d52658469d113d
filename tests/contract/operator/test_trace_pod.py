"""The pod of a trace run, against its golden file and the Kubernetes client's models, and the trace's storage.

After an intended change, rewrite the golden file with ``MEMTUNE_WRITE_GOLDEN=1 pytest tests/contract``.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes_models import validate
from small_traces import small_trace

from memtune.api import Job, load_job
from memtune.wire import environment
from memtune.wire.run import TraceRun
from memtune.wire.trace_message import pack
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.kubernetes.client import Client
from memtune_operator.kubernetes.traces import Traces, image_of
from memtune_operator.local.runs import expanded
from memtune_operator.pods.trace_pod import is_outdated, key_of, trace_pod

GOLDEN = Path(__file__).parents[2] / "golden" / "trace-pod.json"
RUNNER_IMAGE = "registry.example/memtune-runner:1"
TRACE = pack(small_trace())
OF_A_VOLUME = pack(replace(small_trace(), mounted=True))
CODE = {"name": "code", "configMap": {"name": "code"}}


def job(
    image: str = "registry.example/team/train:1",
    container: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    uid: str = "6e1c1d1e-0000-4000-8000-000000000001",
    **spec: Any,
) -> Job:
    trainer = {
        "name": "trainer",
        "image": image,
        "command": ["torchrun", "train.py"],
        "workingDir": "/code",
        "env": [{"name": "HF_HOME", "value": "/cache"}],
        "ports": [{"containerPort": 8000}],
        "resources": {"limits": {"nvidia.com/gpu": "8", "memory": "500Gi"}},
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
        "livenessProbe": {"exec": {"command": ["true"]}},
        **(container or {}),
    }
    template = {
        "metadata": {"labels": {"team": "nlp"}},
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            "containers": [trainer, {"name": "sidecar", "image": "proxy:1"}],
            "volumes": [CODE],
            **(pod or {}),
        },
    }
    data = {
        "apiVersion": "memtune.dev/v1alpha1",
        "kind": "MemoryTunedJob",
        "metadata": {"name": "own", "namespace": "research", "uid": uid},
        "spec": {
            "model": {"factory": "train:build", "factoryArguments": {"depth": 4, "note": "$(HOME)"}},
            "training": {"globalBatchSize": 256, "sequenceLength": 4096},
            "resources": {"gpusPerNode": 8, "gpuMemory": "80Gi"},
            "template": template,
            **spec,
        },
    }
    return load_job(data)


def test_a_trace_run_is_made_as_the_golden_file_says() -> None:
    made = trace_pod(job(), TraceRun(1), RUNNER_IMAGE)
    text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("MEMTUNE_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert GOLDEN.read_text() == text
    validate(made, "V1Pod", "Pod")


def test_it_asks_for_no_gpu_and_for_little_else() -> None:
    (container,) = trace_pod(job(), TraceRun(1), RUNNER_IMAGE)["spec"]["containers"]
    assert set(container["resources"]["limits"]) == set(container["resources"]["requests"]) == {"cpu", "memory"}


@pytest.mark.parametrize(
    "other",
    [
        job(image="registry.example/team/train:2"),
        job(model={"factory": "train:other", "factoryArguments": {"depth": 4, "note": "$(HOME)"}}),
        job(model={"factory": "train:build", "factoryArguments": {"depth": 5, "note": "$(HOME)"}}),
        job(training={"globalBatchSize": 256, "sequenceLength": 2048}),
        job(tuning={"space": {"precision": ["fp32"]}}),
        job(container={"env": [{"name": "HF_HOME", "value": "/elsewhere"}]}),
        job(container={"envFrom": [{"configMapRef": {"name": "sizes"}}]}),
        job(container={"workingDir": "/other"}),
        job(container={"volumeMounts": [{"name": "code", "mountPath": "/code", "subPath": "new"}]}),
        job(pod={"volumes": [{"name": "code", "configMap": {"name": "other-code"}}]}),
        job(pod={"initContainers": [{"name": "fetch", "image": "git:1", "command": ["git", "clone"]}]}),
        job(pod={"securityContext": {"runAsUser": 1000}}),
        job(runner={"python": "/opt/other/bin/python3"}),
        job(runner={"image": "registry.example/memtune-runner:2"}),
    ],
    ids=[
        "image", "factory", "arguments", "length", "precision", "env", "envFrom", "workingDir", "volumeMounts",
        "volumes", "initContainers", "securityContext", "python", "runner",
    ],
)  # fmt: skip
def test_every_input_of_a_trace_changes_its_key(other: Job) -> None:
    assert key_of(other, RUNNER_IMAGE) != key_of(job(), RUNNER_IMAGE)


@pytest.mark.parametrize(
    "other",
    [
        job(retry={"maxOomRetries": 1}, checkpoint={"path": "/c"}),
        job(uid="6e1c1d1e-0000-4000-8000-000000000002"),
        job(container={"resources": {"limits": {"nvidia.com/gpu": "8"}}}),
        job(pod={"tolerations": []}),
        job(pod={"volumes": [CODE, {"name": "of-the-sidecar", "emptyDir": {}}]}),
        job(container={"name": "main"}),
        job(container={"imagePullPolicy": "Always"}),
    ],
    ids=["recovery", "job", "resources", "place", "volume that is not mounted", "name", "imagePullPolicy"],
)
def test_fields_that_change_no_trace_leave_its_key(other: Job) -> None:
    assert key_of(other, RUNNER_IMAGE) == key_of(job(), RUNNER_IMAGE)


def test_variables_and_mounts_that_refer_to_those_of_a_run_have_nothing_literal_in_a_trace() -> None:
    own = [
        {"name": "OUT", "value": "$(MEMTUNE_CHECKPOINT_PATH)/run"},
        {"name": "BATCH", "value": "$(MEMTUNE_MICRO_BATCH)"},
    ]
    mounts = [{"name": "code", "mountPath": "/code", "subPathExpr": "$(MEMTUNE_JOB)"}]
    referring = job(container={"env": own, "volumeMounts": mounts}, checkpoint={"path": "/saves"})
    (container,) = trace_pod(referring, TraceRun(1), RUNNER_IMAGE)["spec"]["containers"]
    told = expanded({each["name"]: each.get("value", "") for each in container["env"]})
    assert (told["OUT"], told["BATCH"]) == ("/saves/run", "")
    assert told[environment.JOB] == referring.metadata.name
    assert not {environment.PLAN, environment.ACCUMULATION} & set(told)


FILLED, SCRATCH = {"name": "fetch", "image": "git:1"}, {"name": "scratch", "emptyDir": {}}


@pytest.mark.parametrize(
    ("init_containers", "told"), [([], "/code:/data"), ([FILLED], "/code:/data:/tmp")], ids=["empty", "filled"]
)
def test_the_tracer_knows_which_volumes_may_hold_anything(init_containers: list[Any], told: str) -> None:
    paths = {"code": "/code", "data": "data", "scratch": "/tmp"}
    mounts = [{"name": name, "mountPath": path} for name, path in paths.items()]
    volumes = [CODE, {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}, SCRATCH]
    other = job(container={"volumeMounts": mounts}, pod={"volumes": volumes, "initContainers": init_containers})
    (container,) = trace_pod(other, TraceRun(1), RUNNER_IMAGE)["spec"]["containers"]
    assert {"name": environment.TRACE_VOLUMES, "value": told} in container["env"]


class Server:
    """One ConfigMap, and errors instead of it."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] | None = None
        self.refusal: ApiError | None = None

    async def read(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        assert (api_version, kind, namespace, name) == ("v1", "ConfigMap", "research", "memtune-traces")
        if self.refusal:
            raise self.refusal
        if self.kept is None:
            raise ApiError(ErrorKind.ABSENT, "not found")
        return self.kept

    async def create(self, manifest: dict[str, Any]) -> None:
        assert self.kept is None
        self.kept = manifest

    async def replace(self, manifest: dict[str, Any]) -> None:
        assert self.kept is not None
        self.kept = manifest


def a_pod(image_id: str, kind: str = "trace") -> dict[str, Any]:
    status = {"containerStatuses": [{"imageID": f"registry.example/team/train@{image_id}"}]}
    return {"metadata": {"labels": {"memtune.dev/run-kind": kind}}, "status": status}


def new_traces(server: Server) -> Traces:
    return Traces(cast("Client", server), RUNNER_IMAGE)


def kept_in(server: Server) -> Traces:
    traces = new_traces(server)
    assert asyncio.run(traces.remember(job(), TRACE, [a_pod("sha256:1")], 7.0))
    return traces


def test_a_trace_is_kept_for_the_next_job_of_the_namespace() -> None:
    server = Server()
    traces = kept_in(server)
    assert asyncio.run(traces.recall(job(), {}, [])) == TRACE
    assert image_of(server.kept, key_of(job(), RUNNER_IMAGE)) == "sha256:1"
    assert asyncio.run(traces.recall(job(image="another:1"), {}, [])) == ""
    assert kept_in(server)


def env_from(**source: Any) -> dict[str, Any]:
    return {"env": [{"name": "SIZE", "valueFrom": source}]}


def field(path: str) -> dict[str, Any]:
    return env_from(fieldRef={"fieldPath": path})


@pytest.mark.parametrize(
    ("first", "trace"),
    [
        (job(), OF_A_VOLUME),
        (job(container={"envFrom": [{"configMapRef": {"name": "sizes"}}]}), TRACE),
        (job(container=env_from(secretKeyRef={"name": "sizes", "key": "size"})), TRACE),
        (job(container=env_from(configMapKeyRef={"name": "sizes", "key": "size"})), TRACE),
        (job(container=field("metadata.labels['size']")), TRACE),
        (job(container=field("metadata.annotations['size']")), TRACE),
        (job(pod={"containers": []}), TRACE),
        (job(), "garbage"),
    ],
    ids=["volume", "envFrom", "secret", "configMap", "label", "annotation", "edited to none", "garbage"],
)
def test_a_trace_that_depends_on_a_volume_is_not_shared(first: Job, trace: str) -> None:
    server = Server()
    assert not asyncio.run(new_traces(server).remember(first, trace, [a_pod("sha256:1")], 7.0))
    assert server.kept is None


@pytest.mark.parametrize(
    "source",
    [
        field("metadata.namespace"),
        field("status.podIP"),
        env_from(resourceFieldRef={"resource": "limits.cpu"}),
    ],
)
def test_variables_that_tell_of_the_pod_alone_keep_nobody_from_sharing(source: dict[str, Any]) -> None:
    server, first = Server(), job(container=source)
    assert asyncio.run(new_traces(server).remember(first, TRACE, [a_pod("sha256:1")], 7.0))
    assert asyncio.run(new_traces(server).recall(job(container=source, uid="another"), {}, [])) == TRACE


def test_code_from_a_volume_leaves_shared_traces_alone() -> None:
    server = Server()
    traces = kept_in(server)
    asyncio.run(traces.remember(job(), OF_A_VOLUME, [], 8.0))
    assert asyncio.run(traces.recall(job(uid="another"), {}, [])) == TRACE


def test_a_pod_that_traced_by_other_rules_or_another_template_is_outdated() -> None:
    made = trace_pod(job(), TraceRun(1), RUNNER_IMAGE)
    assert not is_outdated(made, job(), RUNNER_IMAGE)
    assert is_outdated(made, job(tuning={"space": {"precision": ["fp32"]}}), RUNNER_IMAGE)
    assert not is_outdated(made, job(pod={"containers": []}), RUNNER_IMAGE)
    made["metadata"]["annotations"] = None
    assert not is_outdated(made, job(), RUNNER_IMAGE)
    assert not is_outdated(a_pod("sha256:1", "probe"), job(), RUNNER_IMAGE)


def test_an_image_that_is_another_by_now_is_traced_again_but_once() -> None:
    traces, now_another = kept_in(Server()), [a_pod("sha256:2", "probe")]
    assert asyncio.run(traces.recall(job(), {}, now_another)) == ""
    assert asyncio.run(traces.recall(job(), {}, [a_pod("sha256:1", "probe")])) == TRACE
    assert asyncio.run(traces.recall(job(), {"trace": {"name": "own-trace-1"}}, now_another)) == TRACE


def test_a_job_without_a_factory_asks_for_nothing() -> None:
    described = job(model={"architecture": {"hiddenSize": 64, "layers": 1, "heads": 1, "ffnSize": 64, "vocabSize": 64}})
    server = Server()
    server.refusal = ApiError(ErrorKind.RETRY, "not to be asked")
    assert asyncio.run(new_traces(server).recall(described, {}, [])) == ""


@pytest.mark.parametrize(("kind", "again"), [(ErrorKind.CONFLICT, True), (ErrorKind.RETRY, False)])
def test_a_trace_that_cannot_be_kept_does_not_end_the_job(kind: ErrorKind, again: bool) -> None:
    server = Server()
    server.refusal = ApiError(kind, "no")
    assert asyncio.run(new_traces(server).remember(job(), TRACE, [], 7.0)) is again
