"""Starts and stops Prometheus and the dashboards page under their own supervisor."""

from __future__ import annotations

import os
import signal

from dev.cluster import machine, packages
from dev.cluster.layout import LOGS, MONITORING, MONITORING_LOCK, MONITORING_PORTS, MONITORING_STATUS
from dev.cluster.monitoring.dashboards import dashboards
from dev.cluster.monitoring.prometheus import prometheus, write_settings
from dev.cluster.monitoring.targets import targets
from dev.cluster.readiness import wait_for
from dev.cluster.shell import read_whole
from dev.cluster.state import monitoring_problems, supervisor_pid
from dev.cluster.supervisor import is_alive, leave_running, part_pids, supervise
from dev.cluster.versions import MONITORING_PACKAGES


def start() -> None:
    """Start everything, unless all of it is running."""
    if supervisor_pid(MONITORING_LOCK) is None or monitoring_problems():
        stop()
        packages.provide(MONITORING_PACKAGES)
        machine.check_ports_are_free(MONITORING_PORTS)
        MONITORING.mkdir(exist_ok=True)
        write_settings()
        leave_running("dev.cluster.monitoring.lifecycle", log=LOGS / "monitoring.log", lock=MONITORING_LOCK)
    wait_for("Prometheus and the dashboards", _has_started, lock=MONITORING_LOCK, wrong=monitoring_problems)


def stop() -> None:
    """Stop everything; Prometheus's data is kept until the cluster is taken down."""
    pids = part_pids(MONITORING_STATUS).values()
    if (supervisor := supervisor_pid(MONITORING_LOCK)) is not None:
        os.kill(supervisor, signal.SIGKILL)
    wait_for("the end of Prometheus", lambda: not any(is_alive(pid) for pid in pids), seconds=30, wrong=list)
    for file in (MONITORING_STATUS, MONITORING_LOCK):
        file.unlink(missing_ok=True)


def _has_started() -> bool:
    return MONITORING_STATUS.is_file() and bool(read_whole(MONITORING_STATUS)["started"])


if __name__ == "__main__":
    supervise([targets(), prometheus(), dashboards()], MONITORING_STATUS, MONITORING_LOCK)
