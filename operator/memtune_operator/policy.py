"""What jobs may ask of a node. Who may create a job can make the operator create pods, so their template is checked.

This is a second line behind Pod Security: it also holds where nobody labelled the namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memtune.spec import Job

_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")


@dataclass(frozen=True)
class Policy:
    """What is allowed. ``service_accounts`` None allows any; no ``allowed_namespaces``, every one not denied."""

    host_path: bool = False
    host_network: bool = False
    privileged: bool = False
    service_accounts: tuple[str, ...] | None = ("default",)
    allowed_namespaces: tuple[str, ...] = ()
    denied_namespaces: tuple[str, ...] = ()


def refusal(policy: Policy, job: Job, template: dict[str, Any]) -> str:
    """Why no pod of this job may be made, in one sentence; empty if it may. ``template`` has its shape checked."""
    found = [*_namespace(policy, job), *_host(policy, job, template["spec"]), *_accounts(policy, template["spec"])]
    return f"{found[0]}; ask whoever installed the operator, or take it out" if found else ""


def _namespace(policy: Policy, job: Job) -> Iterator[str]:
    namespace = job.metadata.namespace
    if namespace in policy.denied_namespaces:
        yield f"the operator's policy denies jobs in namespace {namespace}"
    elif policy.allowed_namespaces and namespace not in policy.allowed_namespaces:
        yield f"the operator's policy allows jobs only in {', '.join(policy.allowed_namespaces)}, not in {namespace}"


def _host(policy: Policy, job: Job, spec: dict[str, Any]) -> Iterator[str]:
    if not policy.host_path:
        yield from (f"{where} is a hostPath, which the operator's policy denies" for where in _host_paths(job, spec))
    if not policy.host_network:
        yield from (f"{where} is set, which the operator's policy denies" for where in _host_namespaces(spec))
    if not policy.privileged:
        yield from (f"{where} is set, which the operator's policy denies" for where in _privileges(spec))


def _host_paths(job: Job, spec: dict[str, Any]) -> Iterator[str]:
    checkpoint = job.spec.checkpoint
    if checkpoint and checkpoint.volume and checkpoint.volume.host_path:
        yield "spec.checkpoint.volume"
    for volume in spec.get("volumes") or []:
        if "hostPath" in volume:
            yield f"spec.template.spec.volumes[{volume['name']}]"


def _host_namespaces(spec: dict[str, Any]) -> Iterator[str]:
    yield from (f"spec.template.spec.{name}" for name in _HOST_NAMESPACES if spec.get(name))
    for where, container in _containers(spec):
        for port in container.get("ports") or []:
            if isinstance(port, dict) and port.get("hostPort"):
                yield f"{where}.ports[{port['hostPort']}].hostPort"


def _privileges(spec: dict[str, Any]) -> Iterator[str]:
    for where, container in _containers(spec):
        context = container.get("securityContext")
        if not isinstance(context, dict):
            continue
        if context.get("privileged"):
            yield f"{where}.securityContext.privileged"
        capabilities = context.get("capabilities")
        if isinstance(capabilities, dict) and capabilities.get("add"):
            yield f"{where}.securityContext.capabilities.add"


def _accounts(policy: Policy, spec: dict[str, Any]) -> Iterator[str]:
    if policy.service_accounts is None:
        return
    # The second name is an old one that the API server still takes.
    for field in ("serviceAccountName", "serviceAccount"):
        account = spec.get(field)
        if account and account not in policy.service_accounts:
            allowed = ", ".join(policy.service_accounts)
            yield f"spec.template.spec.{field} is {account!r}; the operator's policy allows {allowed}"


def _containers(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in ("initContainers", "containers"):
        for container in spec.get(part) or []:
            yield f"spec.template.spec.{part}[{container['name']}]", container
