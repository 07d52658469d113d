"""The operator's security policy: checks job templates, since anyone who may create a job creates pods through it.

A second line of defence behind Pod Security: it also applies in namespaces without a Pod Security label.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memtune.api import Job
from memtune_operator.pods import pod_security

_PROFILE_ANNOTATIONS = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)
# The account of pods that do not name one.
_UNNAMED = "default"
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
# The SELinux types that Pod Security `baseline` allows; spc_t, for one, is unconfined.
_CONFINED_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")


@dataclass(frozen=True)
class Policy:
    """The permissions. ``service_accounts`` None allows any account; empty ``allowed_namespaces`` allows every
    namespace that is not denied.

    ``is_restricted`` enforces Pod Security `restricted`, which excludes host_path, host_network and privileged.
    """

    host_path: bool = False
    host_network: bool = False
    privileged: bool = False
    service_accounts: tuple[str, ...] | None = ("default",)
    allowed_namespaces: tuple[str, ...] = ()
    denied_namespaces: tuple[str, ...] = ()
    is_restricted: bool = False


def violation(policy: Policy, job: Job, template: dict[str, Any]) -> str:
    """Every reason why the policy forbids the job's pods; empty if it allows them. ``template`` must be validated."""
    found = [*_namespace(policy, job), *_host(policy, job, template), *_accounts(policy, template["spec"])]
    forbidden = list(pod_security.contradictions(job, template["spec"])) if policy.is_restricted else []
    sentences = [f"{'; '.join(found)}; ask whoever installed the operator, or change it"] if found else []
    if forbidden:
        sentences.append(f"the operator's policy is Pod Security restricted, which forbids {', '.join(forbidden)}")
    return "; ".join(sentences)


def _namespace(policy: Policy, job: Job) -> Iterator[str]:
    namespace = job.metadata.namespace
    if namespace in policy.denied_namespaces:
        yield f"the operator's policy denies jobs in namespace {namespace}"
    elif policy.allowed_namespaces and namespace not in policy.allowed_namespaces:
        yield f"the operator's policy allows jobs only in {', '.join(policy.allowed_namespaces)}, not in {namespace}"


def _host(policy: Policy, job: Job, template: dict[str, Any]) -> Iterator[str]:
    spec = template["spec"]
    # The `restricted` check reports these, with what to mount instead.
    if not policy.host_path and not policy.is_restricted:
        yield from (f"{where} is a hostPath, which the operator's policy denies" for where in _host_paths(job, spec))
    if not policy.host_network:
        yield from (f"{where} is set, which the operator's policy denies" for where in _host_namespaces(spec))
    if not policy.privileged:
        found = (*_privileges(spec), *_unconfined(template["metadata"].get("annotations") or {}))
        yield from (f"{where} is set, which the operator's policy denies" for where in found)


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
    for where, holder in (("spec.template.spec", spec), *_containers(spec)):
        context = holder.get("securityContext")
        if isinstance(context, dict):
            yield from (f"{where}.securityContext.{part}" for part in _given_up(context))


def _unconfined(annotations: dict[str, Any]) -> Iterator[str]:
    """The annotations that older API servers read in place of the profile fields."""
    for key, value in annotations.items():
        if key.startswith(_PROFILE_ANNOTATIONS) and value == "unconfined":
            yield f"spec.template.metadata.annotations[{key}]: unconfined"


def _given_up(context: dict[str, Any]) -> Iterator[str]:
    """The fields of a security context that weaken isolation from the node."""
    if context.get("privileged"):
        yield "privileged"
    if _part(context, "capabilities").get("add"):
        yield "capabilities.add"
    if _part(context, "windowsOptions").get("hostProcess"):
        yield "windowsOptions.hostProcess"
    if context.get("procMount") not in (None, "", "Default"):
        yield "procMount"
    labels = _part(context, "seLinuxOptions")
    yield from (f"seLinuxOptions.{part}" for part in ("user", "role") if labels.get(part))
    if (labels.get("type") or "") not in _CONFINED_TYPES:
        yield "seLinuxOptions.type"
    for part in ("seccompProfile", "appArmorProfile"):
        if _part(context, part).get("type") == "Unconfined":
            yield f"{part}.type: Unconfined"


def _part(context: dict[str, Any], name: str) -> dict[str, Any]:
    found = context.get(name)
    return found if isinstance(found, dict) else {}


def _accounts(policy: Policy, spec: dict[str, Any]) -> Iterator[str]:
    if policy.service_accounts is None:
        return
    # The second name is deprecated but still accepted.
    given = {field: spec[field] for field in ("serviceAccountName", "serviceAccount") if spec.get(field)}
    allowed = ", ".join(policy.service_accounts)
    for field, account in given.items():
        if account not in policy.service_accounts:
            yield f"spec.template.spec.{field} is {account!r}; the operator's policy allows {allowed}"
    if not given and _UNNAMED not in policy.service_accounts:
        unset = f"spec.template.spec.serviceAccountName is not set, which means {_UNNAMED!r}"
        yield f"{unset}; the operator's policy allows {allowed}"


def _containers(spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in ("initContainers", "containers"):
        for container in spec.get(part) or []:
            yield f"spec.template.spec.{part}[{container['name']}]", container
