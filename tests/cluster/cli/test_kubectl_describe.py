"""What `kubectl describe` makes of a job: kubectl itself, before a server that knows one job and its events."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from simulated_events import cluster_after_job_succeeded

from dev.cluster import binaries
from memtune.api import API_VERSION, KIND

GROUP, VERSION = API_VERSION.split("/")
PLURAL = "memorytunedjobs"


def answers() -> dict[str, Any]:
    """What the server has to say, by path."""
    cluster = cluster_after_job_succeeded()
    metadata = {"name": "tiny", "namespace": "research", "uid": "job-uid", "resourceVersion": "1"}
    told = [each for _, each in sorted(cluster.objects.items())]
    verbs = {"namespaced": True, "verbs": ["get", "list"]}
    version = {"groupVersion": API_VERSION, "version": VERSION}
    return {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "groups": [{"name": GROUP, "versions": [version], "preferredVersion": version}],
        },
        "/api/v1": {
            "kind": "APIResourceList",
            "groupVersion": "v1",
            "resources": [{"name": "events", "kind": "Event", **verbs}],
        },
        f"/apis/{API_VERSION}": {
            "kind": "APIResourceList",
            "groupVersion": API_VERSION,
            "resources": [{"name": PLURAL, "kind": KIND, "shortNames": ["mtj"], **verbs}],
        },
        f"/apis/{API_VERSION}/namespaces/research/{PLURAL}/tiny": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": metadata,
            "status": cluster.status,
        },
        "/api/v1/namespaces/research/events": {"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": told},
    }


@pytest.fixture
def server() -> Iterator[str]:
    known = answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = known.get(self.path.partition("?")[0])
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer or {"kind": "Status", "status": "Failure", "code": 404}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


@pytest.mark.usefixtures("kubeconfig")
def test_kubectl_describe_shows_a_job_and_its_events(server: str, tmp_path: Path) -> None:
    kubectl = shutil.which("kubectl") or binaries.command("kubectl")
    command = [kubectl, f"--server={server}", f"--cache-dir={tmp_path}", "describe", "mtj", "tiny", "-n", "research"]
    shown = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=True).stdout
    fields, _, events = shown.partition("Events:")
    conditions = re.findall(r"^    Reason: +(.*)$", fields, re.MULTILINE)
    assert conditions == ["Predicted", "Measured", "Launched", "Succeeded"]
    measured = re.search(r"^  Message: +attempt 1 on \S+ has ended well, measured (\S+ GiB)", fields, re.MULTILINE)
    assert measured, fields
    assert [line.split()[1] for line in events.splitlines()[3:]] == [
        "Predicted",
        "ProbeBudget",
        *["ProbeStarted", "ProbeEnded"] * 2,
        "Measured",
        "Launched",
        "Succeeded",
    ]
    for expected in (
        f"is predicted to take {measured[1]}",  # by a cluster that measures what is predicted
        f"won: probe 2 measured {measured[1]}",
        "; 2 measured plans fit",
        ", and tuning.maxProbes allows no more than 2 probes",
    ):
        assert expected in events
