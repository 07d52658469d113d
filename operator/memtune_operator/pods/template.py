"""Reads and validates a job's pod template, which the CRD does not check."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from memtune.api import Job, reasons
from memtune.api.container import TRAINER_CONTAINER
from memtune_operator.pods import names
from memtune_operator.pods.bootstrap import IMAGE_USER
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.placement import REQUIRED
from memtune_operator.pods.wrapped_container import TemplateError, conflict

_LISTS_OF_OBJECTS = {"containers": "name", "initContainers": "name", "volumes": "name"}
_CONTAINER_LISTS = {"env": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
_CONTAINER_OBJECTS = ("resources", "securityContext")
_CONTAINER_TEXTS = ("image", "workingDir", "terminationMessagePath")
# Fields that each run sets itself, with the reason.
_DECIDED_BY_RUNS = {
    "hostname": "pods find each other by the host names that each run gives them",
    "subdomain": "pods find each other through the Service that each run has",
}


def read_template(job: Job, runner_image: str) -> Manifest:
    """A validated copy of the user's template, or the built-in trainer's if there is none."""
    template = _built_in(job, runner_image) if job.spec.template is None else deepcopy(job.spec.template)
    spec = _object(template.get("spec"), "spec")
    metadata = _object(template.get("metadata") or {}, "metadata")
    for part in ("labels", "annotations"):
        _object(metadata.get(part) or {}, f"metadata.{part}")
    _check_spec(spec)
    _check_conflicts(spec)
    _check_metadata(metadata)
    return {"metadata": metadata, "spec": spec}


def _built_in(job: Job, runner_image: str) -> Manifest:
    if job.spec.model.peft:
        problem = "the built-in trainer trains whole models, and spec.model.peft is an adapter"
        raise TemplateError(reasons.TEMPLATE_REJECTED, f"spec.template: {problem}; give the command that trains it")
    command = [job.spec.runner.python, "-m", "memtune_runner.trainer"]
    container = {"name": TRAINER_CONTAINER, "image": runner_image, "command": command}
    # A new volume belongs to root, and the image runs as this user.
    return {"spec": {"securityContext": {"fsGroup": IMAGE_USER}, "containers": [container]}}


def _check_spec(spec: Manifest) -> None:
    if not spec.get("containers"):
        raise _rejected("spec.containers", "it has no container", "give the one that trains")
    for part, key in _LISTS_OF_OBJECTS.items():
        _objects(spec.get(part) or [], f"spec.{part}", key)
    for part in ("securityContext", "nodeSelector"):
        _object(spec.get(part) or {}, f"spec.{part}")
    for position, toleration in enumerate(_list(spec.get("tolerations") or [], "spec.tolerations")):
        _object(toleration, f"spec.tolerations[{position}]")
    _check_affinity(_object(spec.get("affinity") or {}, "spec.affinity"))
    for part in ("initContainers", "containers"):
        for container in spec.get(part) or []:
            _check_container(container, f"spec.{part}[{container['name']}]")


def _check_affinity(affinity: Manifest) -> None:
    """Check the parts of the affinity that a run extends or matches nodes against."""
    anti = "spec.affinity.podAntiAffinity"
    pods_apart = _object(affinity.get("podAntiAffinity") or {}, anti)
    _list(pods_apart.get(REQUIRED) or [], f"{anti}.{REQUIRED}")
    where = "spec.affinity.nodeAffinity"
    node_affinity = _object(affinity.get("nodeAffinity") or {}, where)
    required = _object(node_affinity.get(REQUIRED) or {}, f"{where}.{REQUIRED}")
    terms = f"{where}.{REQUIRED}.nodeSelectorTerms"
    for position, term in enumerate(_list(required.get("nodeSelectorTerms") or [], terms)):
        for part in ("matchExpressions", "matchFields"):
            _check_expressions(_object(term, f"{terms}[{position}]").get(part) or [], f"{terms}[{position}].{part}")


def _check_expressions(expressions: Any, where: str) -> None:
    _objects(expressions, where, "key")
    for position, expression in enumerate(expressions):
        _texts([expression.get("operator") or ""], f"{where}[{position}].operator")
        _texts(expression.get("values") or [], f"{where}[{position}].values")


def _check_container(container: Manifest, where: str) -> None:
    for part, key in _CONTAINER_LISTS.items():
        _objects(container.get(part) or [], f"{where}.{part}", key)
    for part in _CONTAINER_OBJECTS:
        _object(container.get(part) or {}, f"{where}.{part}")
    for part in ("limits", "requests"):
        _object((container.get("resources") or {}).get(part) or {}, f"{where}.resources.{part}")
    for part in ("command", "args"):
        _texts(container.get(part) or [], f"{where}.{part}")
    for part in _CONTAINER_TEXTS:
        _texts([container.get(part) or ""], f"{where}.{part}")
    for variable in container.get("env") or []:
        _texts([text for text in [variable.get("value")] if text is not None], f"{where}.env[{variable['name']}].value")
    for mount in container.get("volumeMounts") or []:
        mounted = f"{where}.volumeMounts[{mount['mountPath']}]"
        _texts([mount.get("name", "")], f"{mounted}.name")
        _texts([mount.get("subPathExpr") or ""], f"{mounted}.subPathExpr")


def _check_conflicts(spec: Manifest) -> None:
    if spec.get("restartPolicy", "Never") != "Never":
        problem = f"{spec['restartPolicy']} would let the kubelet relaunch a run"
        raise conflict("spec.restartPolicy", problem, "take it out; the operator relaunches, on a plan that fits")
    for part, why in _DECIDED_BY_RUNS.items():
        if spec.get(part):
            raise conflict(f"spec.{part}", why, "take it out")
    for part in _LISTS_OF_OBJECTS:
        for item in spec.get(part) or []:
            if item["name"].startswith(names.RESERVED_PREFIX):
                raise conflict(f"spec.{part}[{item['name']}]", "names with memtune- are MemTune's", "rename it")


def _check_metadata(metadata: Manifest) -> None:
    for part in ("labels", "annotations"):
        for key in metadata.get(part) or {}:
            if str(key).startswith(f"{names.GROUP}/"):
                raise conflict(f"metadata.{part}", f"{key} is set by each run", "take it out")
    for part in sorted(set(metadata) - {"labels", "annotations", "creationTimestamp"}):
        raise conflict(f"metadata.{part}", "a pod of a run takes only labels and annotations from here", "take it out")


def _object(value: Any, where: str) -> Manifest:
    if not isinstance(value, dict):
        what = "it is missing" if value is None else f"it is {type(value).__name__}, not an object"
        raise _rejected(where, what, "write it as a PodTemplateSpec has it")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _rejected(where, f"it is {type(value).__name__}, not a list", "write it as a PodTemplateSpec has it")
    return value


def _objects(value: Any, where: str, key: str) -> None:
    for position, item in enumerate(_list(value, where)):
        if not isinstance(_object(item, f"{where}[{position}]").get(key), int if key == "containerPort" else str):
            raise _rejected(f"{where}[{position}]", f"it has no valid {key}", f"give {key}")


def _texts(value: Any, where: str) -> None:
    if not all(isinstance(text, str) for text in _list(value, where)):
        raise _rejected(where, "it is not made of strings", "put each word in quotes")


def _rejected(where: str, problem: str, advice: str) -> TemplateError:
    return TemplateError(reasons.TEMPLATE_REJECTED, f"spec.template.{where}: {problem}; {advice}")
