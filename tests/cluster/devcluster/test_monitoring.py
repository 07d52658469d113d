"""Prometheus and the dashboards' page as parts of devcluster: started once, started anew when dead, and ended."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Callable

import pytest
from listeners import elsewhere, listeners
from pods import eventually

from dev.cluster.layout import MONITORING_PORTS, MONITORING_STATUS
from dev.cluster.monitoring import dashboards, prometheus
from dev.cluster.state import monitoring_problems
from dev.cluster.supervisor import is_alive, part_pids


@pytest.mark.xdist_group("devcluster")
@pytest.mark.usefixtures("cluster")
def test_prometheus_is_started_once_and_restarted_when_dead(devcluster: Callable[..., str]) -> None:
    assert devcluster("prometheus").splitlines()[-1] == prometheus.URL
    first = part_pids(MONITORING_STATUS)
    devcluster("prometheus")
    assert part_pids(MONITORING_STATUS) == first
    os.kill(first["prometheus"], signal.SIGKILL)
    (problem,) = eventually(monitoring_problems, "the dead Prometheus to be noticed")
    assert problem.startswith("prometheus ended with signal SIGKILL")
    devcluster("up")
    assert monitoring_problems() == []
    urllib.request.urlopen(f"{prometheus.URL}/-/ready", timeout=30).close()
    found = listeners()
    own = {f"{dashboards.ADDRESS}:{port}" for port in MONITORING_PORTS.values()}
    assert own <= {address for _, address in found}
    assert elsewhere(found) == []
    second = part_pids(MONITORING_STATUS)
    devcluster("prometheus", "--stop")
    assert not any(is_alive(pid) for pid in (*first.values(), *second.values()))
