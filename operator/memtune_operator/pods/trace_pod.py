"""The pod of a trace run: the user's image without GPUs and the tracer as its command; the trace's cache key. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from memtune.api import Job
from memtune.api.container import escape, names_in
from memtune.api.factory import trace_key, tracing_words
from memtune.units import GIB, MIB
from memtune.wire import environment
from memtune.wire.names import pod_name, short_hash
from memtune.wire.run import RunKind, TraceRun
from memtune_operator.pods import names, pod_security
from memtune_operator.pods.bootstrap import BOOTSTRAP, WORK_DIRECTORY
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.manifests import TERMINATION_MESSAGE, metadata_of
from memtune_operator.pods.template import read_template
from memtune_operator.pods.variables import of_trace
from memtune_operator.pods.wrapped_container import TemplateError, copy_runner, env_of, wrapped_index

# For torch and the shapes of one model: 70 billion parameters take 0.3 GiB beyond the import.
_LIMIT_BYTES = 4 * GIB
# The tracer's own limit, below the container's, so that it can report when memory is short.
_TRACER_BYTES = _LIMIT_BYTES - 512 * MIB
_RESOURCES = {
    "requests": {"cpu": "500m", "memory": "1Gi"},
    "limits": {"cpu": "2", "memory": str(_LIMIT_BYTES)},
}
_OUTPUT = environment.TERMINATION_MESSAGE_PATH
# Fields kept from the user's container: image, and the sources of its code, data and permissions.
_KEPT = ("image", "env", "envFrom", "volumeMounts", "workingDir", "securityContext")
# Kept fields that do not change a trace.
_KEPT_ASIDE = ("name", "imagePullPolicy")
# Fields kept from the pod beside its volumes: those that fill the volumes, and the user it runs as.
_KEPT_OF_POD = ("initContainers", "securityContext")
# Sources of variables about the pod itself, which no model depends on. Not labels and annotations: the template may
# give them any meaning, and they are not in the key.
_OF_ONE_POD = {"fieldRef", "resourceFieldRef"}
_OF_THE_TEMPLATE = ("metadata.labels", "metadata.annotations")


def trace_pod(job: Job, run: TraceRun, runner_image: str, is_restricted: bool = False) -> Manifest:
    """The pod that traces a job's factory and writes the trace to its termination message."""
    template = read_template(job, runner_image)
    spec, container = template["spec"], _wrapped(job, template["spec"])
    stem, name = job.metadata.name, pod_name(job.metadata.name, run.kind, run.number, 0)
    labels = {**(template["metadata"].get("labels") or {}), **names.run_labels(stem, run.kind, run.number)}
    # So that another factory's trace is never used for this one.
    own = {names.ANNOTATION_PLAN_HASH: _hash_of(job, runner_image)}
    annotations = {**(template["metadata"].get("annotations") or {}), **own}
    made = {
        **spec,
        "restartPolicy": "Never",
        "initContainers": [
            copy_runner(spec, job.spec.runner.image or runner_image), *(spec.get("initContainers") or [])
        ],
        "containers": [_tracer(job, spec, container)],
        "volumes": [*(spec.get("volumes") or []), {"name": names.RUNNER_VOLUME, "emptyDir": {}}],
    }  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata_of(job, name, {**labels, names.LABEL_INDEX: "0"}, annotations),
        "spec": pod_security.fill_in(made) if is_restricted else made,
    }


def key_of(job: Job, runner_image: str) -> str:
    """The cache key of a factory's trace: a hash of everything that its pod takes from the template."""
    spec = read_template(job, runner_image)["spec"]
    container = _wrapped(job, spec)
    volumes = [volume for _, volume in _mounted(spec, container)]
    of_pod = {name: spec.get(name) for name in _KEPT_OF_POD}
    return trace_key(job, {"container": _kept(container), "volumes": volumes, "pod": of_pod})


def has_foreign_variables(job: Job, runner_image: str) -> bool:
    """Whether the container has variables whose values come from outside the template, which the key does not cover."""
    container = _wrapped(job, read_template(job, runner_image)["spec"])
    return bool(container.get("envFrom")) or any(_is_foreign(each) for each in container.get("env") or [])


def is_outdated(pod: Manifest, job: Job, runner_image: str) -> bool:
    """Whether a trace pod was made by another version of the tracer, or for an earlier spec."""
    if not is_trace(pod):
        return False
    try:
        wanted = _hash_of(job, runner_image)
    except TemplateError:
        return False  # no trace is wanted until the template is valid
    # A pod without the annotation counts as up to date.
    found = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_PLAN_HASH, wanted)
    return bool(found != wanted)


def image_of(job: Job, runner_image: str) -> str:
    """The training image, as the job names it."""
    image: str = _wrapped(job, read_template(job, runner_image)["spec"])["image"]
    return image


def is_trace(pod: Manifest) -> bool:
    """Whether a pod belongs to a trace run."""
    return (pod["metadata"].get("labels") or {}).get(names.LABEL_RUN_KIND) == RunKind.TRACE


def _wrapped(job: Job, spec: Manifest) -> Manifest:
    containers = spec["containers"]
    found: Manifest = containers[wrapped_index(containers, job.spec.resources.gpu_resource)]
    return {**found, "image": found.get("image") or ""}


def _hash_of(job: Job, runner_image: str) -> str:
    return short_hash(key_of(job, runner_image), 16)


def _kept(container: Manifest, *aside: str) -> dict[str, Any]:
    return {name: container[name] for name in (*aside, *_KEPT) if name in container}


def _is_foreign(variable: Manifest) -> bool:
    source = variable.get("valueFrom") or {}
    path = str((source.get("fieldRef") or {}).get("fieldPath") or "")
    return bool(source.keys() - _OF_ONE_POD) or path.startswith(_OF_THE_TEMPLATE)


def _mounted(spec: Manifest, container: Manifest) -> list[tuple[str, Manifest]]:
    """The volumes that the container mounts, with their mount paths."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes") or []}
    mounts = container.get("volumeMounts") or []
    return [(mount["mountPath"], volumes[mount["name"]]) for mount in mounts if mount.get("name") in volumes]


def _filled(spec: Manifest, container: Manifest) -> list[str]:
    """The mount paths of volumes that may hold files at the start; init containers may fill an emptyDir."""
    is_filled = bool(spec.get("initContainers"))
    places = [path for path, volume in _mounted(spec, container) if is_filled or "emptyDir" not in volume]
    # Kubelets accept paths with or without a leading slash.
    return [str(PurePosixPath("/", place)) for place in places]


def _tracer(job: Job, spec: Manifest, container: Manifest) -> Manifest:
    path = container.get("terminationMessagePath") or TERMINATION_MESSAGE
    words = [*tracing_words(job), "--memory", str(_TRACER_BYTES), "--message", "--output", f"$({_OUTPUT})"]
    own = container.get("env") or []
    texts = [each.get("value") for each in own]
    texts += [each.get("subPathExpr") for each in container.get("volumeMounts") or []]
    referred = {name for text in texts for name, _ in names_in(text or "")}
    env = {**of_trace(job, referred), _OUTPUT: path, environment.TRACE_VOLUMES: ":".join(_filled(spec, container))}
    return {
        **_kept(container, *_KEPT_ASIDE),
        "command": [job.spec.runner.python, "-c", BOOTSTRAP, "trace", *map(escape, words[:-1]), words[-1]],
        "env": [*env_of(env), *own],
        "resources": _RESOURCES,
        "volumeMounts": [
            *(container.get("volumeMounts") or []), {"name": names.RUNNER_VOLUME, "mountPath": WORK_DIRECTORY}
        ],
        "terminationMessagePath": path,
        "terminationMessagePolicy": "File",
    }  # fmt: skip
