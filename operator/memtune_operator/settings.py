"""The operator's settings: environment variables, read once and validated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from memtune.planning.cost import read_prices
from memtune_operator.pods.gangs import Gang
from memtune_operator.pods.pod_security import RESTRICTED
from memtune_operator.pods.security_policy import Policy

PREFIX = "MEMTUNE_OPERATOR_"
RUNNER_IMAGE = PREFIX + "RUNNER_IMAGE"
NAMESPACES = PREFIX + "NAMESPACES"
ALLOWED_NAMESPACES = PREFIX + "ALLOWED_NAMESPACES"
DENIED_NAMESPACES = PREFIX + "DENIED_NAMESPACES"
ALLOW_HOST_PATH = PREFIX + "ALLOW_HOST_PATH"
ALLOW_HOST_NETWORK = PREFIX + "ALLOW_HOST_NETWORK"
ALLOW_PRIVILEGED = PREFIX + "ALLOW_PRIVILEGED"
SERVICE_ACCOUNTS = PREFIX + "SERVICE_ACCOUNTS"
POD_SECURITY = PREFIX + "POD_SECURITY"
READ_NODES = PREFIX + "READ_NODES"
GANGS = PREFIX + "GANGS"
GPU_HOUR_PRICES = PREFIX + "GPU_HOUR_PRICES"
LEASE_NAMESPACE = PREFIX + "LEASE_NAMESPACE"
LEASE_NAME = PREFIX + "LEASE_NAME"
IDENTITY = PREFIX + "IDENTITY"
METRICS_PORT = PREFIX + "METRICS_PORT"
LIVENESS_PORT = PREFIX + "LIVENESS_PORT"

ANY = "*"
_Value = TypeVar("_Value")


class SettingsError(ValueError):
    """A missing or invalid variable. The message names it and says what to do."""


@dataclass(frozen=True)
class Settings:
    """The operator's settings. Empty ``namespaces`` means the whole cluster; empty ``lease_namespace`` disables leader
    election.

    ``gpu_hour_prices`` are in dollars, by GPU product.
    """

    runner_image: str
    policy: Policy
    identity: str
    namespaces: tuple[str, ...] = ()
    reads_nodes: bool = True
    gangs: frozenset[Gang] = frozenset()
    gpu_hour_prices: Mapping[str, float] = field(default_factory=dict)
    lease_namespace: str = ""
    lease_name: str = "memtune-operator"
    metrics_port: int = 9401
    liveness_port: int = 8080


def read_settings(variables: Mapping[str, str]) -> Settings:
    """Read the settings from ``variables`` (os.environ); raise SettingsError at the first invalid one."""
    if not variables.get(RUNNER_IMAGE):
        raise SettingsError(f"{RUNNER_IMAGE} is not set; give the image that the runner is copied from")
    namespaces = _names(variables.get(NAMESPACES, ""))
    return Settings(
        runner_image=variables[RUNNER_IMAGE],
        policy=_policy(variables, is_cluster_scoped=not namespaces),
        identity=variables.get(IDENTITY) or variables.get("HOSTNAME") or "memtune-operator",
        namespaces=namespaces,
        reads_nodes=_read(variables, READ_NODES, _flag, True),
        gangs=_read(variables, GANGS, _gangs, frozenset()),
        gpu_hour_prices=_read(variables, GPU_HOUR_PRICES, read_prices, {}),
        lease_namespace=variables.get(LEASE_NAMESPACE, ""),
        lease_name=variables.get(LEASE_NAME) or Settings.lease_name,
        metrics_port=_read(variables, METRICS_PORT, _port, Settings.metrics_port),
        liveness_port=_read(variables, LIVENESS_PORT, _port, Settings.liveness_port),
    )


def _policy(variables: Mapping[str, str], is_cluster_scoped: bool) -> Policy:
    """A cluster-wide operator serves mutually untrusting users, so by default it denies access to the node."""
    accounts = variables.get(SERVICE_ACCOUNTS) or ("default" if is_cluster_scoped else ANY)
    is_restricted = _read(variables, POD_SECURITY, _is_restricted, False)
    allow = _flag_under_restricted if is_restricted else _flag
    is_open = not is_cluster_scoped and not is_restricted
    return Policy(
        host_path=_read(variables, ALLOW_HOST_PATH, allow, is_open),
        host_network=_read(variables, ALLOW_HOST_NETWORK, allow, is_open),
        privileged=_read(variables, ALLOW_PRIVILEGED, allow, is_open),
        service_accounts=None if accounts == ANY else _names(accounts),
        allowed_namespaces=_names(variables.get(ALLOWED_NAMESPACES, "")),
        denied_namespaces=_names(variables.get(DENIED_NAMESPACES, "")),
        is_restricted=is_restricted,
    )


def _read(variables: Mapping[str, str], name: str, read: Callable[[str], _Value], default: _Value) -> _Value:
    text = variables.get(name)
    if not text:
        return default
    try:
        return read(text)
    except ValueError as error:
        raise SettingsError(f"{name}={text!r}: {error}") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("it is neither true nor false")
    return text == "true"


def _flag_under_restricted(text: str) -> bool:
    if _flag(text):
        raise ValueError(f"{POD_SECURITY}={RESTRICTED} forbids it; set false, or take one of the two out")
    return False


def _is_restricted(text: str) -> bool:
    if text != RESTRICTED:
        raise ValueError(f"it is not {RESTRICTED}, the only level that can be asked for")
    return True


def _gangs(text: str) -> frozenset[Gang]:
    known = [str(gang) for gang in Gang]
    for name in _names(text):
        if name not in known:
            raise ValueError(f"{name} is none of {', '.join(known)}")
    return frozenset(Gang(name) for name in _names(text))


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError("it is not a port from 1 to 65535")
    return int(text)
