"""Wraps the user's container: puts the runner there and before its command, adds variables, resources and mounts.

A user's value that conflicts with the plan is refused with an explanation, never overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from memtune.api import Job, reasons
from memtune.api.container import TRAINER_CONTAINER, asked_gpus, escape, memory_bytes, trainer_index
from memtune.wire import environment
from memtune.wire.frameworks import framework_of
from memtune.wire.run import Run
from memtune_operator.pods import names
from memtune_operator.pods.bootstrap import BOOTSTRAP, IMAGE_USER, RUNNER_DIRECTORY, WORK_DIRECTORY
from memtune_operator.pods.kinds import Manifest

REPORT_PATH = f"{WORK_DIRECTORY}/report.json"
DEEPSPEED_PATH = f"{WORK_DIRECTORY}/deepspeed.json"
EMULATED_PATH = f"{WORK_DIRECTORY}/emulated"
SHM_PATH = "/dev/shm"
METRICS_PORT = 9400

# The runner's subcommand that launches the command after it.
LAUNCH = ("launch", "--")
# It needs little, and every run waits for it.
_COPY_RESOURCES = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"cpu": "1", "memory": "128Mi"},
}


class TemplateError(ValueError):
    """An invalid template. ``reason`` is that of the job's Stalled condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class CommandRequiredError(TemplateError):
    """The wrapped container has no command: the image's own is not visible from outside."""

    def __init__(self, container: str) -> None:
        message = (
            f"spec.template: container {container!r} sets no command, and the image's own cannot be seen from "
            'outside; add the line that starts the training, like command: ["torchrun", "train.py"]'
        )
        super().__init__(reasons.COMMAND_REQUIRED, message)


def conflict(where: str, problem: str, advice: str) -> TemplateError:
    """The error for a user's value that conflicts with a run."""
    return TemplateError(reasons.TEMPLATE_CONFLICT, f"spec.template.{where}: {problem}; {advice}")


def wrapped_index(containers: list[Manifest], gpu_resource: str) -> int:
    """The index of the container that the runner wraps."""
    index = trainer_index(containers, gpu_resource)
    if index is not None:
        return index
    listed = ", ".join(str(c.get("name")) for c in containers) or "none"
    message = f"spec.template.spec.containers ({listed}): it is unclear which one trains; name it {TRAINER_CONTAINER!r}"
    raise TemplateError(reasons.TRAINER_UNKNOWN, message)


def wrap(container: Manifest, job: Job, run: Run, variables: dict[str, str]) -> Manifest:
    """The user's container with the runner before its command; its arguments and other fields are unchanged."""
    where = f"spec.containers[{container['name']}]"
    if not container.get("command"):
        raise CommandRequiredError(container["name"])
    framework = framework_of([*container["command"], *(container.get("args") or [])])
    if framework is not None and job.spec.integration not in framework.integrations:
        message = f"spec.template.{where}.command: {framework.unsupported(job.spec.integration)}"
        raise TemplateError(reasons.TEMPLATE_REJECTED, message)
    # Newer API servers allow a restart policy per container.
    for part in ("restartPolicy", "restartPolicyRules"):
        if container.get(part) not in (None, "Never", []):
            raise conflict(f"{where}.{part}", "it would let the kubelet relaunch a run", "take it out")
    resources = job.spec.resources
    return {
        **container,
        "command": [job.spec.runner.python, "-c", BOOTSTRAP, *LAUNCH, *container["command"]],
        "env": _environment(container, variables, where),
        "resources": _with_memory(
            _with_gpus(container, resources.gpu_resource, resources.gpus_per_node, where), run.host_request_bytes
        ),
        "volumeMounts": _mounts(container, job, where),
        "ports": _ports(container, where),
    }


def _environment(container: Manifest, variables: dict[str, str], where: str) -> list[Manifest]:
    own = container.get("env") or []
    for variable in own:
        if environment.is_reserved(variable["name"]):
            raise conflict(f"{where}.env", f"{variable['name']} is set by the plan of each run", "take it out")
    # MemTune's first: $(NAME) resolves only to earlier variables.
    return [*env_of(variables), *own]


def env_of(variables: Mapping[str, str]) -> list[Manifest]:
    """The variables as container env entries, with ``$`` escaped against expansion.

    An empty one has no `value`: some API servers drop an empty string in a JobSet as null and reject it.
    """
    return [{"name": name, "value": escape(value)} if value else {"name": name} for name, value in variables.items()]


def _with_gpus(container: Manifest, gpu_resource: str, gpus: int, where: str) -> Manifest:
    asked = asked_gpus(container, gpu_resource)
    if asked not in (None, str(gpus)):
        problem = f"{asked} of {gpu_resource} is not the {gpus} of spec.resources.gpusPerNode"
        raise conflict(f"{where}.resources", problem, "take it out, or change gpusPerNode")
    resources = container.get("resources") or {}
    # Only limits: requests of extended resources equal them. A string, which every API server accepts.
    return {**resources, "limits": {**(resources.get("limits") or {}), gpu_resource: str(gpus)}}


def _with_memory(resources: Manifest, least_bytes: int) -> Manifest:
    """The resources with a request of at least ``least_bytes`` of host memory."""
    if memory_bytes(resources, "requests") >= least_bytes:
        return resources
    return {**resources, "requests": {**(resources.get("requests") or {}), "memory": str(least_bytes)}}


def _mounts(container: Manifest, job: Job, where: str) -> list[Manifest]:
    own = container.get("volumeMounts") or []
    taken = {mount["mountPath"].rstrip("/") for mount in own}
    mounts = [*own, {"name": names.RUNNER_VOLUME, "mountPath": WORK_DIRECTORY}]
    if WORK_DIRECTORY in taken:
        raise conflict(f"{where}.volumeMounts", f"{WORK_DIRECTORY} is where the runner is", "mount it elsewhere")
    # The user's own /dev/shm mount is kept.
    if SHM_PATH not in taken:
        mounts.append({"name": names.SHM_VOLUME, "mountPath": SHM_PATH})
    checkpoint = job.spec.checkpoint
    if checkpoint and checkpoint.volume:
        if checkpoint.path.rstrip("/") in taken:
            problem = f"{checkpoint.path} is mounted here and by spec.checkpoint.volume"
            raise conflict(f"{where}.volumeMounts", problem, "keep one of the two")
        mounts.append({"name": names.CHECKPOINT_VOLUME, "mountPath": checkpoint.path})
    return mounts


def _ports(container: Manifest, where: str) -> list[Manifest]:
    own = container.get("ports") or []
    for port in own:
        if port.get("containerPort") == METRICS_PORT or port.get("name") == names.METRICS_PORT_NAME:
            problem = f"port {port.get('containerPort')} takes the place of the runner's metrics"
            raise conflict(f"{where}.ports", problem, f"use another than {METRICS_PORT} and {names.METRICS_PORT_NAME}")
    return [*own, {"name": names.METRICS_PORT_NAME, "containerPort": METRICS_PORT, "protocol": "TCP"}]


def copy_runner(spec: Manifest, runner_image: str) -> Manifest:
    """The init container that copies the runner into a volume of the user's container."""
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    # The pod's runAsUser applies here too, and runAsNonRoot rejects root. Otherwise the image's user stays, since some
    # clusters reject ids outside the namespace's range.
    if (spec.get("securityContext") or {}).get("runAsUser") == 0:
        # Any non-root user works: the copied files are world-readable.
        context["runAsUser"] = IMAGE_USER
    return {
        "name": names.COPY_CONTAINER,
        "image": runner_image,
        "command": ["python3", "-m", "memtune_runner", "install", RUNNER_DIRECTORY],
        "resources": deepcopy(_COPY_RESOURCES),
        "securityContext": context,
        "volumeMounts": [{"name": names.RUNNER_VOLUME, "mountPath": WORK_DIRECTORY}],
    }
