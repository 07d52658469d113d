"""Keeps the running cluster busy and watches what it costs: does a part die, does memory grow without end?

Objects are written, watched and deleted, pods are started and stopped, all without a pause. The resident memory of
every part is read all the time. A part fails when its median over the last quarter of the run is more than 10 % and
16 MiB above that of the quarter before it: what a cache takes at the start is no leak.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from devcluster.versions import PAUSE_IMAGE  # noqa: E402  # the checkout's devcluster is no installed package

PARTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "containerd")
SAMPLE_SECONDS = 5
GROWTH = 1.10
GROWTH_BYTES = 16 << 20


def memory_bytes() -> dict[str, int]:
    """Resident memory of every process of the cluster by command and process number: a restart shows as a new one."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            name = Path((directory / "cmdline").read_text().split("\0")[0]).name
            status = (directory / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name in PARTS and "VmRSS:" in status:
            found[f"{name}/{directory.name}"] = int(status.split("VmRSS:")[1].split()[0]) * 1024
    return found


class Load:
    """Threads that use the API until told to stop, and the counts of what they did."""

    def __init__(self, connection: Any, namespace: str) -> None:
        self.core: Any = client.CoreV1Api(connection)
        self.namespace = namespace
        self.stop = threading.Event()
        self.counts: Counter[str] = Counter()
        self.threads = [threading.Thread(target=work) for work in (self._write, self._watch, self._run_pods)]

    def _write(self) -> None:
        for number in self._until_stopped():
            name = f"object-{number % 50}"
            body = {"metadata": {"name": name}, "data": {"payload": "x" * 2000, "number": str(number)}}
            if number % 50 == number:
                self.core.create_namespaced_config_map(self.namespace, body)
            else:
                self.core.replace_namespaced_config_map(name, self.namespace, body)
            self.counts["writes"] += 1

    def _watch(self) -> None:
        for _ in self._until_stopped():
            watcher: Any = watch.Watch()  # type: ignore[no-untyped-call]  # it has no types
            listing = self.core.list_namespaced_config_map
            events = watcher.stream(listing, self.namespace, timeout_seconds=SAMPLE_SECONDS)
            self.counts["events"] += sum(1 for _ in events)

    def _run_pods(self) -> None:
        container = {"name": "main", "image": PAUSE_IMAGE, "args": ["resolve", "kubernetes.default"]}
        for number in self._until_stopped():
            name = f"pod-{number}"
            body = {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [container]}}
            self.core.create_namespaced_pod(self.namespace, body)
            while self.core.read_namespaced_pod(name, self.namespace).status.phase not in ("Succeeded", "Failed"):
                time.sleep(0.2)
            self.counts[self.core.read_namespaced_pod(name, self.namespace).status.phase] += 1
            self.core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)

    def _until_stopped(self) -> Any:
        number = 0
        while not self.stop.is_set():
            yield number
            number += 1


def measure(load: Load, seconds: float) -> dict[str, list[int]]:
    series: dict[str, list[int]] = defaultdict(list)
    end = time.monotonic() + seconds
    for thread in load.threads:
        thread.start()
    while time.monotonic() < end and all(thread.is_alive() for thread in load.threads):
        for name, resident_bytes in memory_bytes().items():
            series[name].append(resident_bytes)
        time.sleep(SAMPLE_SECONDS)
    load.stop.set()
    for thread in load.threads:
        thread.join()
    return series


def judge(series: dict[str, list[int]], seconds: float) -> tuple[list[str], list[str]]:
    """The table, and what is wrong."""
    table, wrong = [f"{'part/process':<34} {'first':>8} {'3rd quarter':>12} {'4th quarter':>12}  MiB"], []
    samples = max(len(values) for values in series.values())
    for name, values in sorted(series.items()):
        quarter = max(1, len(values) // 4)
        before, after = statistics.median(values[-2 * quarter : -quarter]), statistics.median(values[-quarter:])
        mib = [f"{value / (1 << 20):.0f}" for value in (values[0], before, after)]
        table.append(f"{name:<34} {mib[0]:>8} {mib[1]:>12} {mib[2]:>12}")
        if len(values) < samples:
            wrong.append(f"{name} was seen {len(values)} of {samples} times: it died or was started anew")
        elif after > before * GROWTH and after - before > GROWTH_BYTES:
            wrong.append(f"{name} still grew in the last quarter of {seconds / 60:.0f} minutes")
    return table, wrong


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--minutes", type=float, default=30)
    seconds = arguments.parse_args().minutes * 60
    command = [sys.executable, "-m", "devcluster"]
    kubeconfig = subprocess.run([*command, "kubeconfig"], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True)
    namespace = f"soak-{uuid.uuid4().hex[:8]}"
    with config.new_client_from_config(kubeconfig.stdout.strip()) as connection:  # type: ignore[no-untyped-call]  # it has no types
        load = Load(connection, namespace)
        load.core.create_namespace({"metadata": {"name": namespace}})
        time.sleep(SAMPLE_SECONDS)  # until the namespace has its service account
        series = measure(load, seconds)
        load.core.delete_namespace(namespace)
    table, wrong = judge(series, seconds)
    wrong += [f"{load.counts['Failed']} pods failed"] if load.counts["Failed"] else []
    wrong += [] if subprocess.run([*command, "status"], cwd=ROOT, check=False).returncode == 0 else ["a part is dead"]
    result = ROOT / "build" / "soak.json"
    result.parent.mkdir(exist_ok=True)
    result.write_text(json.dumps({"minutes": seconds / 60, "counts": load.counts, "wrong": wrong, "table": table}))
    print("\n".join([*table, f"{seconds / 60:.0f} minutes: {dict(load.counts)}", *wrong]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
