"""Virtual pods for the operator's benchmark: never scheduled; this program writes their status like a kubelet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from kubernetes import client, watch
from reporter_jobs import FIXED, command, pod_template, reporter_job

_WATCH_SECONDS = 60
# Eight of ten jobs train, one waits for a node and is retried every 30 s, one is suspended.
_MIX = ("running",) * 8 + ("stalled", "suspended")
_UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
}


def probing(number: int) -> dict[str, Any]:
    """A job that begins with a probe, whose pod stays as created."""
    return reporter_job(f"first-{number}", template=_template())


def mixed(count: int) -> Iterator[dict[str, Any]]:
    """A number of jobs, whose names say in which state they stay."""
    for number in range(count):
        state = _MIX[number % len(_MIX)]
        is_suspended = state == "suspended"
        yield reporter_job(f"{state}-{number}", template=_template(), tuning=FIXED, suspend=is_suspended)


def _template() -> dict[str, Any]:
    return pod_template(command(), schedulerName="nobody")


def is_settled(name: str, status: dict[str, Any]) -> bool:
    """Whether a job has reached its final state."""
    if name.startswith("stalled"):
        return any((each["type"], each["status"]) == ("Stalled", "True") for each in status.get("conditions") or [])
    return bool(status.get("phase", "").lower() == name.partition("-")[0])


class VirtualPods:
    """The pods of a namespace: when each was created, and its status by the name of its job."""

    def __init__(self, core: Any, namespace: str) -> None:
        self.came: dict[str, float] = {}
        self._core = core
        self._namespace = namespace
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> VirtualPods:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._is_over.is_set():
            watcher: Any = watch.Watch()
            listing = self._core.list_namespaced_pod
            for event in watcher.stream(listing, self._namespace, timeout_seconds=_WATCH_SECONDS):
                name = event["object"].metadata.name
                if event["type"] == "ADDED" and name not in self.came:
                    self.came[name] = time.monotonic()
                    self._be_kubelet(name)

    def _be_kubelet(self, name: str) -> None:
        status = _status(name)
        # One that has gone meanwhile needs no status.
        with suppress(client.ApiException):
            if status:
                self._core.patch_namespaced_pod_status(name, self._namespace, {"status": status})


def _status(name: str) -> dict[str, Any]:
    if name.startswith("stalled"):
        return {"phase": "Pending", "conditions": [_UNSCHEDULABLE]}
    if not name.startswith("running"):
        return {}
    started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    container = {"name": "trainer", "image": "virtual", "imageID": "", "ready": True, "restartCount": 0}
    return {"phase": "Running", "containerStatuses": [{**container, "state": {"running": {"startedAt": started}}}]}
