"""The Pod Security Standard `restricted`, control by control.

Written from https://kubernetes.io/docs/concepts/security/pod-security-standards/, independent of the operator's code.
It includes the controls of `baseline`, since the levels are cumulative.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
}
SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"


def violations(spec: Manifest, annotations: Manifest | None = None) -> list[str]:
    """Return each control that a pod spec violates, with the place."""
    return [*_of_pod(spec, annotations or {}), *_of_containers(spec)]


def _of_pod(spec: Manifest, annotations: Manifest) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    pod = spec.get("securityContext") or {}
    yield from (f"pod: {name}" for name in _of_either(pod))
    for sysctl in pod.get("sysctls") or []:
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    for volume in spec.get("volumes") or []:
        yield from (f"volume {kind}" for kind in set(volume) - {"name"} - VOLUMES)
    for key, value in annotations.items():
        if key.startswith(APPARMOR_ANNOTATION) and value != "runtime/default" and not value.startswith("localhost/"):
            yield f"annotation {key}"


def _of_containers(spec: Manifest) -> Iterator[str]:
    pod = spec.get("securityContext") or {}
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        yield from (f"{container['name']}: {each}" for each in _of_container(container, pod))


def _of_container(container: Manifest, pod: Manifest) -> Iterator[str]:
    own = container.get("securityContext") or {}
    yield from _of_either(own)
    capabilities = own.get("capabilities") or {}
    profile = own.get("seccompProfile") or pod.get("seccompProfile") or {}
    non_root = pod.get("runAsNonRoot") if own.get("runAsNonRoot") is None else own["runAsNonRoot"]
    wrong = {
        "privileged": own.get("privileged"),
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
        "runAsNonRoot": non_root is not True,
        "seccompProfile": profile.get("type") not in ("RuntimeDefault", "Localhost"),
        "capabilities.drop": "ALL" not in (capabilities.get("drop") or []),
        "capabilities.add": set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"},
        "procMount": own.get("procMount") not in (None, "", "Default"),
        "hostPort": any(port.get("hostPort") for port in container.get("ports") or []),
        "host of a probe": any(_names_a_host(handler) for handler in _handlers(container)),
    }
    yield from (name for name, is_wrong in wrong.items() if is_wrong)


def _of_either(context: Manifest) -> Iterator[str]:
    """Controls on a field that both pods and containers have, wherever it is set."""
    labels = context.get("seLinuxOptions") or {}
    wrong = {
        "runAsNonRoot is false": context.get("runAsNonRoot") is False,
        "runAsUser": context.get("runAsUser") == 0,
        "seccompProfile": (context.get("seccompProfile") or {}).get("type", "RuntimeDefault")
        not in ("RuntimeDefault", "Localhost"),
        "appArmorProfile": (context.get("appArmorProfile") or {}).get("type", "RuntimeDefault")
        not in ("RuntimeDefault", "Localhost"),
        "seLinuxOptions": labels.get("type") not in SELINUX_TYPES or labels.get("user") or labels.get("role"),
        "hostProcess": (context.get("windowsOptions") or {}).get("hostProcess"),
    }
    return (name for name, is_wrong in wrong.items() if is_wrong)


def _handlers(container: Manifest) -> Iterator[Manifest]:
    yield from (container.get(name) or {} for name in ("livenessProbe", "readinessProbe", "startupProbe"))
    yield from ((container.get("lifecycle") or {}).get(name) or {} for name in ("postStart", "preStop"))


def _names_a_host(handler: Manifest) -> bool:
    return any((handler.get(action) or {}).get("host") for action in ("httpGet", "tcpSocket"))
