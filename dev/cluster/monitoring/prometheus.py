"""Runs Prometheus with the shipped configuration and rules, and the discovered pods as targets."""

from __future__ import annotations

import urllib.error
import urllib.request

from dev.cluster.layout import CHECKOUT, LOGS, MONITORING, PROMETHEUS_PORT
from dev.cluster.monitoring.targets import TARGETS
from dev.cluster.shell import ClusterError
from dev.cluster.supervisor import Part

URL = f"http://127.0.0.1:{PROMETHEUS_PORT}"
_SHIPPED = CHECKOUT / "docs" / "prometheus.yaml"
_SETTINGS = MONITORING / "prometheus.yaml"
# Differences from a long-lived Prometheus: jobs here end after a minute or two.
_CHANGES = {
    "scrape_interval: 15s": "scrape_interval: 1s",
    "evaluation_interval: 30s": "evaluation_interval: 2s",
    "rule_files: [..": f"rule_files: [{CHECKOUT}",
    "kubernetes_sd_configs:\n      - role: pod": f"file_sd_configs:\n      - files: [{TARGETS}]",
}


def prometheus() -> Part:
    argv = [
        "prometheus",
        f"--config.file={_SETTINGS}",
        f"--storage.tsdb.path={MONITORING / 'data'}",
        "--storage.tsdb.retention.size=512MB",
        f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
        "--log.level=warn",
        # A quickstart run takes eight seconds. Prometheus takes up to five to notice a new target and five more to
        # scrape it.
        "--scrape.discovery-reload-interval=1s",
    ]
    return Part("prometheus", argv, LOGS / "prometheus.log", ready=_is_ready)


def write_settings() -> None:
    text = _SHIPPED.read_text()
    for shipped, ours in _CHANGES.items():
        if shipped not in text:
            raise ClusterError(
                f"{_SHIPPED} has no `{shipped}` any more: bring dev/cluster/monitoring/prometheus.py up to date"
            )
        text = text.replace(shipped, ours)
    _SETTINGS.write_text(text)


def _is_ready() -> bool:
    try:
        urllib.request.urlopen(f"{URL}/-/ready", timeout=1).close()
    except (OSError, urllib.error.HTTPError):
        return False
    return True
