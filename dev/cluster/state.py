"""The status of a running cluster: which parts are alive, and the last output of dead ones."""

from __future__ import annotations

import fcntl
from pathlib import Path

from dev.cluster.layout import (
    LOGS,
    MONITORING_LOCK,
    MONITORING_STATUS,
    NODE_COUNT,
    STATE,
    STATUS,
    SUPERVISOR_LOCK,
    Node,
    nodes,
)
from dev.cluster.shell import ClusterError, read_whole, tail
from dev.cluster.supervisor import dead_parts


def supervisor_pid(lock: Path = SUPERVISOR_LOCK) -> int | None:
    """The process id of the running supervisor. It holds its lock while alive, so reused ids do no harm."""
    if not lock.is_file():
        return None
    with lock.open() as held:
        try:
            # A shared lock, so that another process's check is not mistaken for the supervisor.
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(held.read())
    return None


def check_it_lives() -> None:
    """Raise ClusterError with advice unless a cluster is up, possibly with dead parts."""
    if not STATE.exists():
        raise ClusterError("no cluster is up: run `python3 -m dev.cluster up`")
    if supervisor_pid() is None:
        raise ClusterError(
            "the cluster is dead: `python3 -m dev.cluster up` starts a new one\n" + "\n".join(problems())
        )


def current_nodes() -> tuple[Node, ...]:
    """The requested nodes, started or not."""
    return nodes(read_whole(NODE_COUNT) if NODE_COUNT.is_file() else 0)


def problems() -> list[str]:
    """The problems of a started cluster; empty if every part is alive."""
    found = dead_parts(STATUS, LOGS)
    for node in current_nodes():
        found += [f"on {node.name}: {problem}" for problem in dead_parts(node.settings / "status.json", node.log)]
    if supervisor_pid() is None:
        found.append("the supervisor is dead, and every part with it" + _last_words(LOGS / "supervisor.log"))
    return found


def monitoring_problems() -> list[str]:
    """The problems of Prometheus and the dashboards; also empty if they were not requested."""
    found = dead_parts(MONITORING_STATUS, LOGS)
    if MONITORING_STATUS.is_file() and supervisor_pid(MONITORING_LOCK) is None:
        words = _last_words(LOGS / "monitoring.log")
        found.append(f"the supervisor of Prometheus and the dashboards is dead, and both with it{words}")
    return found


def _last_words(log: Path) -> str:
    """The log of a supervisor, which only logs failures."""
    said = tail(log) if log.is_file() else ""
    return f"; the end of its log:\n{said}" if said else ""


def log_of(part: str) -> Path:
    """The log of a part, by name: `etcd`, `node-1`, `node-1/kubelet`, ..."""
    logs = {path.stem: path for path in LOGS.glob("*.log")}
    for node in current_nodes():
        logs |= {f"{node.name}/{path.stem}": path for path in node.log.glob("*.log")}
    if part not in logs:
        known = ", ".join(sorted(logs)) or "none, no cluster is up"
        raise ClusterError(f"there is no log of `{part}`; there are: {known}")
    return logs[part]
