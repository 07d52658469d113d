"""Pod Security `restricted`: fills in required fields and refuses contradicting ones. Pure.

A required field that the template leaves out is filled in. A field that contradicts the standard is refused by name: a
namespace that enforces the level would reject the pod, or the pod would never start. Policy checks the `baseline`
level; this module adds the controls of `restricted` and all volume types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memtune.api import Job

_Spec = dict[str, Any]

RESTRICTED = "restricted"
_VOLUME_TYPES = frozenset(
    ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
)
_SAFE_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    *(f"net.ipv4.tcp_{name}" for name in ("fin_timeout", "keepalive_intvl", "keepalive_probes", "keepalive_time")),
    *(f"net.ipv4.tcp_{name}" for name in ("rmem", "syncookies", "wmem")),
)
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")


def fill_in(spec: _Spec) -> _Spec:
    """The pod spec with every missing field that `restricted` requires."""
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **_given(spec)}
    filled = {part: [_with_context(each) for each in spec.get(part) or []] for part in ("initContainers", "containers")}
    return {**spec, "securityContext": context, **{part: each for part, each in filled.items() if part in spec}}


def _with_context(container: _Spec) -> _Spec:
    own = _given(container)
    capabilities = {"drop": ["ALL"], **{key: value for key, value in _part(own, "capabilities").items() if value}}
    return {**container, "securityContext": {"allowPrivilegeEscalation": False, **own, "capabilities": capabilities}}


def contradictions(job: Job, spec: _Spec) -> Iterator[str]:
    """Each field that `restricted` forbids beyond Policy's checks, with what to write instead."""
    yield from _of_context(spec, "spec.template.spec")
    for sysctl in _part(spec, "securityContext").get("sysctls") or []:
        name = sysctl.get("name") if isinstance(sysctl, dict) else sysctl
        if name not in _SAFE_SYSCTLS:
            yield f"spec.template.spec.securityContext.sysctls[{name}] (take it out)"
    yield from _of_volumes(job, spec)
    for part in ("initContainers", "containers"):
        for container in spec.get(part) or []:
            where = f"spec.template.spec.{part}[{container['name']}]"
            yield from _of_context(container, where)
            yield from _of_container(container, where)


def _of_context(holder: _Spec, where: str) -> Iterator[str]:
    context = _part(holder, "securityContext")
    if context.get("runAsNonRoot") is False:
        yield f"{where}.securityContext.runAsNonRoot: false (take it out)"
    if context.get("runAsUser") == 0:
        yield f"{where}.securityContext.runAsUser: 0 (give the number of a user that is not root)"


def _of_container(container: _Spec, where: str) -> Iterator[str]:
    context = _part(container, "securityContext")
    if context.get("allowPrivilegeEscalation"):
        yield f"{where}.securityContext.allowPrivilegeEscalation: true (take it out)"
    dropped = _part(context, "capabilities").get("drop")
    if dropped and "ALL" not in dropped:
        yield f"{where}.securityContext.capabilities.drop without ALL (add ALL)"
    handlers = {part: _part(container, part) for part in _PROBES}
    handlers |= {f"lifecycle.{part}": _part(_part(container, "lifecycle"), part) for part in _HOOKS}
    for name, handler in handlers.items():
        for action in ("httpGet", "tcpSocket"):
            if _part(handler, action).get("host"):
                yield f"{where}.{name}.{action}.host (take it out)"


def _of_volumes(job: Job, spec: _Spec) -> Iterator[str]:
    checkpoint = job.spec.checkpoint
    if checkpoint and checkpoint.volume and not checkpoint.volume.persistent_volume_claim:
        kind = "nfs" if checkpoint.volume.nfs else "hostPath"
        yield f"spec.checkpoint.volume.{kind} (mount it through a persistentVolumeClaim)"
    for volume in spec.get("volumes") or []:
        for kind in sorted(volume.keys() - {"name", *_VOLUME_TYPES}):
            yield f"spec.template.spec.volumes[{volume['name']}].{kind} (mount it through a persistentVolumeClaim)"


def _given(holder: _Spec) -> _Spec:
    """A security context without null fields, which the API server drops."""
    return {key: value for key, value in _part(holder, "securityContext").items() if value is not None}


def _part(holder: _Spec, name: str) -> _Spec:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}
