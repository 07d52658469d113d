"""The operator beside the cluster, as a process that a test may kill at any moment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fast_yaml
from kubernetes import client, watch
from pods import eventually
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from memtune.api import GROUP, PLURAL, VERSION

_ROOT = Path(__file__).resolve().parents[3]
CRD: dict[str, Any] = fast_yaml.load((_ROOT / "crds" / "memtune.dev_memorytunedjobs.yaml").read_text())
_PATHS = [str(_ROOT / package) for package in ("core", "operator")]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class OperatorProcess:
    """`python -m memtune_operator` for one namespace, with its log in a file."""

    def __init__(self, kubeconfig: str, namespace: str, runner_image: str, log: Path, **settings: str) -> None:
        log.touch()
        self._log = log
        self.metrics_port = free_port()
        self._variables = {
            **os.environ,
            "KUBECONFIG": kubeconfig,
            "PYTHONPATH": os.pathsep.join(_PATHS),
            "MEMTUNE_OPERATOR_RUNNER_IMAGE": runner_image,
            "MEMTUNE_OPERATOR_NAMESPACES": namespace,
            "MEMTUNE_OPERATOR_METRICS_PORT": str(self.metrics_port),
            "MEMTUNE_OPERATOR_LIVENESS_PORT": str(free_port()),
            **{f"MEMTUNE_OPERATOR_{name}": value for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "memtune_operator"]
            self._process = subprocess.Popen(command, env=self._variables, stdout=log, stderr=log)

    def kill(self) -> None:
        """As the kernel would: nothing is said, nothing is finished."""
        self._send(signal.SIGKILL)

    def stop(self) -> None:
        self._send(signal.SIGTERM)

    def freeze(self) -> None:
        """As a node that stands still would: the process is there, and does nothing until it thaws."""
        self._running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    def wait(self, seconds: float) -> int:
        """The exit code, once it ends by itself."""
        return self._running.wait(timeout=seconds)

    def log(self) -> str:
        return self._log.read_text()

    def requests(self, verb: str) -> float:
        """How many of this verb it has sent to the API server."""
        return sum(each.value for each in self.samples("memtune_api_requests_total") if each.labels["verb"] == verb)

    def samples(self, *metrics: str) -> list[Sample]:
        """All series of these metrics, as it tells them now."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return [sample for family in families for sample in family.samples if sample.name in metrics]

    def cpu_seconds(self) -> float:
        # The name in parentheses may hold anything; what follows it is counted from the third field on.
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return int(self._proc("statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def highest_bytes(self) -> int:
        """The most memory that it has ever had resident."""
        return int(self._proc("status").split("VmHWM:")[1].split()[0]) * 1024

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the operator was not started"
        return self._process

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self._running.pid}/{name}").read_text()

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            # One that was frozen would not hear of its end.
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(timeout=30)
            self._process = None


class Jobs:
    """The MemoryTunedJobs of one namespace."""

    def __init__(self, connection: client.ApiClient, namespace: str) -> None:
        self._api: Any = client.CustomObjectsApi(connection)
        self._where = (GROUP, VERSION, namespace, PLURAL)

    def apply(self, job: dict[str, Any], **options: Any) -> None:
        self._api.create_namespaced_custom_object(*self._where, job, **options)

    def read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._api.get_namespaced_custom_object(*self._where, name)
        return found

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.read(name).get("status") or {}
        return found

    def last_run(self, name: str) -> dict[str, Any]:
        """What the status records of the newest run; empty while there is none."""
        return [{}, *runs(self.status(name))][-1]

    def wait_until_started(self, name: str, seconds: float = 120) -> str:
        """Wait until the newest run is under way, and give its name."""
        eventually(lambda: self.last_run(name).get("startedAt"), f"a run of job {name} to start", seconds)
        started: str = self.last_run(name)["name"]
        return started

    def changes(self, name: str, seconds: int = 300) -> Iterator[dict[str, Any]]:
        """The status as it is, and then each time that something of the job was written."""
        found = watch.Watch().stream(
            self._api.list_namespaced_custom_object,
            *self._where,
            field_selector=f"metadata.name={name}",
            timeout_seconds=seconds,
        )
        for event in found:
            yield event["object"].get("status") or {}

    def write_status(self, name: str, status: dict[str, Any]) -> None:
        """As somebody would who edits it by hand."""
        job = self.read(name)
        self._api.replace_namespaced_custom_object_status(*self._where, name, {**job, "status": status})

    def statuses(self) -> dict[str, dict[str, Any]]:
        """The status of each job by its name."""
        items = self._api.list_namespaced_custom_object(*self._where)["items"]
        return {item["metadata"]["name"]: item.get("status") or {} for item in items}

    def patch(self, name: str, **spec: Any) -> None:
        self._api.patch_namespaced_custom_object(*self._where, name, {"spec": spec})

    def annotate(self, name: str, annotations: dict[str, str]) -> None:
        """A change that means nothing to the operator."""
        self._api.patch_namespaced_custom_object(*self._where, name, {"metadata": {"annotations": annotations}})

    def delete(self, name: str) -> None:
        self._api.delete_namespaced_custom_object(*self._where, name)

    def wait_for(self, name: str, *phases: str, seconds: float = 300) -> dict[str, Any]:
        """The status once it has one of these phases."""

        def reached() -> dict[str, Any]:
            status = self.status(name)
            return status if status.get("phase") in phases else {}

        return eventually(reached, f"job {name} to be {' or '.join(phases)}", seconds)

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        conditions = self.status(name).get("conditions") or []
        return next((each for each in conditions if each["type"] == kind), {})


def runs(status: dict[str, Any]) -> list[dict[str, Any]]:
    """What a status records of all runs, the probes first."""
    return [*status.get("probes", ()), *status.get("attempts", ())]


def install_crd(connection: client.ApiClient) -> None:
    """Create the CRD, or bring the one that is there up to date, and wait until the API serves it."""
    api: Any = client.ApiextensionsV1Api(connection)
    name = CRD["metadata"]["name"]
    eventually(lambda: _is_written(api), f"the CRD {name} to be written")
    until_served(api, name)


def _is_written(api: Any) -> bool:
    """Whether it could be written: somebody else may do the same at this moment."""
    name = CRD["metadata"]["name"]
    try:
        if not any(each.metadata.name == name for each in api.list_custom_resource_definition().items):
            api.create_custom_resource_definition(CRD)
            return True
        version = api.read_custom_resource_definition(name).metadata.resource_version
        metadata = {**CRD["metadata"], "resourceVersion": version}
        api.replace_custom_resource_definition(name, {**CRD, "metadata": metadata})
    except client.ApiException as error:
        if error.status not in (404, 409):
            raise
        return False
    return True


def until_served(api: Any, name: str) -> None:
    """Wait until the API server serves what a CRD describes."""

    def is_served() -> bool:
        conditions = api.read_custom_resource_definition(name).status.conditions or []
        return any(each.type == "Established" and each.status == "True" for each in conditions)

    eventually(is_served, f"the CRD {name} to be served")
