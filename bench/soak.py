"""Keeps the running cluster busy and watches what it costs: does a part die, does memory grow without end?

Objects are written, watched and deleted, pods are started and stopped, all without a pause. The resident memory of
every part is read all the time; `soak_memory` judges it. Parts with a way to trigger garbage collection are judged by
their live memory after it: garbage, and pages that were not given back yet, are no growth. Prints a report in Markdown;
exit code 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from kubernetes import client, config, watch
from soak_memory import findings, table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dev.cluster.layout import API_URL, CERTIFICATES, CONTROLLER_MANAGER_PORT, SCHEDULER_PORT  # noqa: E402
from dev.cluster.state import current_nodes  # noqa: E402
from dev.cluster.versions import KUBERNETES, PAUSE_IMAGE  # noqa: E402  # the checkout's devcluster is no package

SAMPLE_SECONDS = 5
LEAST_MINUTES = 3
KUBELET_PORT = 10250
# Processes that can be asked to collect garbage; nothing else can answer at these addresses.
COLLECTING = {
    "kube-apiserver": API_URL,
    "kube-controller-manager": f"https://127.0.0.1:{CONTROLLER_MANAGER_PORT}",
    "kube-scheduler": f"https://127.0.0.1:{SCHEDULER_PORT}",
}
# Objects that are rewritten in turn, at a fixed rate, so that two soaks are comparable.
OBJECTS = 50
WRITES_PER_SECOND = 50
# A kubelet remembers its last 4,096 events, three for each container. Pods of one container need most of half an hour
# to fill that, and the soak would end before it can level off.
PODS_AT_ONCE = 4
CONTAINERS = 6
# A pod of these takes some seconds, and the API load is smaller.
POD_SECONDS = 120
END_SECONDS = 60
FINE = (
    "No part died, no call failed, and every part's memory levelled off, by the rule of `still_grows` in "
    "bench/soak_memory.py."
)
PARTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "containerd",
    "dnsmasq",
    "dev.cluster.dns",
    "dev.cluster.node",
    "dev.cluster.volumes",
    "dev.cluster.main_supervisor",
)


def part_of(words: list[str]) -> str:
    """The name of a part from its command line; Python's parts are known by their module."""
    return words[2] if words[1:2] == ["-m"] else Path(words[0]).name


def parts() -> dict[str, Path]:
    """The directory in /proc of every process of the cluster, by its command and number."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            name = part_of((directory / "cmdline").read_text().rstrip("\0").split("\0"))
            if name in PARTS:
                found[f"{name}/{directory.name}"] = directory
    return found


def own_bytes(directory: Path) -> int:
    """Resident memory without program and file pages, which the kernel may drop at any time."""
    status = (directory / "status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024 if "RssAnon:" in status else 0


def live_bytes() -> dict[str, int]:
    """Live heap and stack bytes of each part that can be asked, after a collection."""
    admin = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    admin.check_hostname, admin.verify_mode = False, ssl.CERT_NONE
    admin.load_cert_chain(CERTIFICATES / "admin.crt", CERTIFICATES / "admin.key")
    kubelets = {f"kubelet of {node.name}": f"https://{node.address}:{KUBELET_PORT}" for node in current_nodes()}
    found = {}
    for name, address in {**COLLECTING, **kubelets}.items():
        try:
            asked = urllib.request.urlopen(f"{address}/debug/pprof/heap?gc=1&debug=1", timeout=60, context=admin)
            with asked as answer:
                found[f"{name}, live"] = profiled_bytes(answer.read().decode())
        except OSError as error:
            raise ConnectionError(f"{address}: {error}") from error
    return found


def profiled_bytes(page: str) -> int:
    """The heap and stack bytes on a page of Go's pprof."""
    return sum(int(re.findall(rf"^# {name} = (\d+)", page, re.MULTILINE)[0]) for name in ("HeapAlloc", "Stack"))


def is_judged(name: str) -> bool:
    """Whether a row's growth counts: not for processes whose live bytes are known."""
    part, _, number = name.partition("/")
    return not number or part not in {*COLLECTING, "kubelet"}


class Load:
    """Threads that use the API until stopped, with counts of what they did."""

    def __init__(self, connection: Any, namespace: str) -> None:
        self.core: Any = client.CoreV1Api(connection)
        self.namespace = namespace
        self.stop = threading.Event()
        self.counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._numbers = count()
        self.failures: list[str] = []
        works = [self._write, self._watch, *[self._run_pods] * PODS_AT_ONCE]
        # Daemon threads, so that a second interrupt does not wait for them.
        self.threads = [threading.Thread(target=self.attempt, args=(work,), daemon=True) for work in works]

    def end(self) -> None:
        """Stop all threads; one that hangs is a failure, and is not waited for any longer."""
        self.stop.set()
        deadline = time.monotonic() + END_SECONDS
        started = [thread for thread in self.threads if thread.is_alive()]
        for thread in started:
            thread.join(max(0.0, deadline - time.monotonic()))
        if hanging := sum(thread.is_alive() for thread in started):
            self.failures.append(f"{hanging} threads of the load did not stop in {END_SECONDS} s")

    def remove_namespace(self) -> None:
        self.core.delete_namespace(self.namespace)

    def attempt(self, work: Callable[[], object]) -> None:
        """Run it; an error is recorded and ends the soak."""
        try:
            work()
        except Exception as error:
            self.failures.append(f"{work.__name__.strip('_')} was given up: {error!r}")

    def _write(self) -> None:
        for number in self._until_stopped():
            name = f"object-{number % OBJECTS}"
            body = {"metadata": {"name": name}, "data": {"payload": "x" * 2000, "number": str(number)}}
            if number < OBJECTS:
                self.core.create_namespaced_config_map(self.namespace, body)
            else:
                self.core.replace_namespaced_config_map(name, self.namespace, body)
            self.counts["objects written"] += 1
            self.stop.wait(1 / WRITES_PER_SECOND)

    def _watch(self) -> None:
        for _ in self._until_stopped():
            watcher: Any = watch.Watch()
            listing = self.core.list_namespaced_config_map
            events = watcher.stream(listing, self.namespace, timeout_seconds=SAMPLE_SECONDS)
            self.counts["changes watched"] += sum(1 for _ in events)

    def _run_pods(self) -> None:
        one = {"image": PAUSE_IMAGE, "args": ["resolve", "kubernetes.default"]}
        containers = [{"name": f"main-{number}", **one} for number in range(CONTAINERS)]
        for _ in self._until_stopped():
            name = f"pod-{next(self._numbers)}"
            body = {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": containers}}
            self.core.create_namespaced_pod(self.namespace, body)
            if not (phase := self._last_phase(name)):
                return
            with self._counting:
                self.counts[f"pods {phase.lower()}"] += 1
            self.core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)
            # Events live for an hour, so they would only accumulate during the soak. A kubelet sends five a second and
            # has more to send, so earlier pods' events come late.
            self.core.delete_collection_namespaced_event(self.namespace)

    def _last_phase(self, name: str) -> str:
        """How the pod ended; empty if the load is stopped before that."""
        deadline = time.monotonic() + POD_SECONDS
        while not self.stop.is_set():
            phase: str = self.core.read_namespaced_pod(name, self.namespace).status.phase
            if phase in ("Succeeded", "Failed"):
                return phase
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is still {phase} after {POD_SECONDS} s")
            self.stop.wait(0.2)
        return ""

    def _until_stopped(self) -> Iterator[int]:
        number = 0
        while not self.stop.is_set():
            yield number
            number += 1


def measure(load: Load, seconds: float) -> dict[str, list[int]]:
    """Memory over time of the parts that live at the start: one that dies has fewer samples than the others."""
    watched = parts()
    series: dict[str, list[int]] = defaultdict(list, {name: [] for name in watched})

    def collect() -> None:
        for name, size in live_bytes().items():
            series[name].append(size)

    end = time.monotonic() + seconds
    try:
        for thread in load.threads:
            thread.start()
        while time.monotonic() < end and not load.failures:
            load.attempt(collect)
            for name, directory in watched.items():
                with suppress(FileNotFoundError, ProcessLookupError):
                    series[name].append(own_bytes(directory))
            time.sleep(SAMPLE_SECONDS)
    finally:
        load.end()
    return series


def run(kubeconfig: str, seconds: float) -> tuple[dict[str, list[int]], Load]:
    namespace = f"soak-{uuid.uuid4().hex[:8]}"
    with config.new_client_from_config(kubeconfig) as connection:
        load = Load(connection, namespace)
        load.core.create_namespace({"metadata": {"name": namespace}})
        try:
            time.sleep(SAMPLE_SECONDS)  # until the namespace has its service account
            series = measure(load, seconds)
        finally:
            load.attempt(load.remove_namespace)
    return series, load


def devcluster(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dev.cluster", *words]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)


def report(minutes: float, series: dict[str, list[int]], counts: Counter[str], wrong: list[str]) -> str:
    done = ", ".join(f"{number:,} {what}" for what, number in sorted(counts.items()))
    return f"""\
# A cluster under load, and its memory

Made by `.venv/bin/python bench/soak.py --minutes {minutes:g} > bench/results/soak.md`
with Kubernetes {KUBERNETES} on Linux {platform.release()}, {os.cpu_count()} cores.
Anonymous resident memory in MiB, every {SAMPLE_SECONDS} s; a third is its median, the rise that of the second half.
The API server, the controller manager, the scheduler and the kubelets collect their garbage each time, and are judged
by what lives after that, in heap and stacks: the rest is what Go has not given back yet.

{table(series)}

In {minutes:g} minutes: {done}.

{chr(10).join(f"- {sentence}" for sentence in wrong) or FINE}"""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # The API server lets etcd keep up to ten minutes of history: etcd cannot have levelled off before that.
    arguments.add_argument("--minutes", type=float, default=30, help="default: 30; less than 15 tell nothing of etcd")
    minutes = arguments.parse_args().minutes
    if minutes < LEAST_MINUTES:
        arguments.error(f"{minutes:g} minutes are too few to judge anybody's memory: give at least {LEAST_MINUTES}")
    before = devcluster("status")
    if before.returncode != 0:
        sys.exit(f"{before.stdout}{before.stderr}".strip())
    series, load = run(devcluster("kubeconfig").stdout.strip(), minutes * 60)
    if load.failures:
        sys.exit("the soak was broken off: " + "; ".join(load.failures))
    wrong = findings(series, is_judged)
    wrong += [f"{load.counts['pods failed']} pods failed"] if load.counts["pods failed"] else []
    status = devcluster("status")
    wrong += [] if status.returncode == 0 else [f"`devcluster status`: {status.stdout}{status.stderr}"]
    print(report(minutes, series, load.counts, wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
