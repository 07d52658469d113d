"""The operator's cost: from apply to the first probe's pod, and with hundreds of jobs in steady state.

Needs the dev cluster (`make cluster`) with no other operator in it. The operator runs beside it as a process, over all
namespaces. The pods are virtual: no scheduler takes them, and this program is their kubelet. Prints a table in
Markdown; exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kubernetes import config

ROOT = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(ROOT), str(ROOT / "tests" / "cluster")]

# Modules beside bench/ are not a package.
from operator_pods import VirtualPods, is_settled, mixed, probing  # noqa: E402
from operator_process import Jobs, OperatorProcess, install_crd  # noqa: E402
from pods import Cluster, eventually  # noqa: E402
from raw_api import RawApi  # noqa: E402

from dev.cluster.versions import KUBERNETES  # noqa: E402

MOST_SECONDS, MOST_SHARE, MOST_MEGABYTES = 1.0, 0.05, 250
# Wait this long after the last job settled, until its consequences are over.
CALM_SECONDS = 60
READS, WRITES = ("GET", "WATCH"), ("POST", "PUT", "PATCH", "DELETE")
_REQUESTS, _LOOKS = "memtune_api_requests_total", "memtune_reconcile_seconds_count"


class Row(NamedTuple):
    """One line of the table; ``is_kept`` is None without a target."""

    what: str
    measured: str
    target: str = ""
    is_kept: bool | None = None


class Used(NamedTuple):
    """Usage up to a moment: time, CPU, reconciliations, lists of all pods, requests by verb."""

    seconds: float
    cpu_seconds: float
    looks: float
    pod_lists: float
    requests: Mapping[str, float]

    def since(self, before: Used) -> Used:
        """The usage since then."""
        requests = {verb: count - before.requests[verb] for verb, count in self.requests.items()}
        return Used(
            self.seconds - before.seconds,
            self.cpu_seconds - before.cpu_seconds,
            self.looks - before.looks,
            self.pod_lists - before.pod_lists,
            requests,
        )

    @property
    def writes(self) -> float:
        """Requests that change something."""
        return sum(self.requests[verb] for verb in WRITES)


class Bench:
    """An operator over the whole cluster, and a namespace of virtual pods for its jobs."""

    def __init__(self, cluster: Cluster, operator: OperatorProcess, jobs: Jobs, pods: VirtualPods) -> None:
        self._api = RawApi(cluster.connection)
        self._operator = operator
        self._jobs = jobs
        self._pods = pods

    def apply(self, number: int) -> float:
        """Seconds from apply to the first pod of an otherwise idle operator."""
        job = probing(number)
        name = job["metadata"]["name"]
        pod = f"{name}-probe-1-0"
        began = time.monotonic()
        self._jobs.apply(job)
        eventually(lambda: pod in self._pods.came, f"pod {pod}")
        self._jobs.delete(name)
        time.sleep(1.0)
        return self._pods.came[pod] - began

    def fill(self, count: int) -> None:
        """Create a number of jobs and wait until each settles."""
        for job in mixed(count):
            self._jobs.apply(job)

        def settled() -> bool:
            return all(is_settled(name, status) for name, status in self._jobs.statuses().items())

        eventually(settled, f"{count} jobs to settle", 900)
        time.sleep(CALM_SECONDS)

    def touch_all(self) -> None:
        """Change every job in a way that triggers a reconciliation without effect."""
        looks, names = self.used().looks, list(self._jobs.statuses())
        for name in names:
            self._jobs.annotate(name, {"bench": "touched"})
        eventually(lambda: self.used().looks >= looks + len(names), "every job to be looked at", 300)

    def used(self) -> Used:
        """The usage until now."""
        # A single scrape: with hundreds of jobs it has thousands of series, which cost the operator something.
        samples = self._operator.samples(_REQUESTS, _LOOKS)
        requests = dict.fromkeys((*READS, *WRITES), 0.0)
        for each in samples:
            if each.name == _REQUESTS:
                requests[each.labels["verb"]] += each.value
        looks = sum(each.value for each in samples if each.name == _LOOKS)
        return Used(time.monotonic(), self._operator.cpu_seconds(), looks, self._pod_lists(), requests)

    def megabytes(self) -> tuple[float, float]:
        """The operator's resident memory now, and its peak."""
        return self._operator.resident_bytes() / 1e6, self._operator.highest_bytes() / 1e6

    def _pod_lists(self) -> float:
        counts = re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$", self._api.get("/metrics"), re.MULTILINE)
        # The cluster's own components do not use JSON.
        asked = ('resource="pods"', 'scope="cluster"', 'verb="LIST"', 'contentType="application/json"')
        return sum(float(count) for labels, count in counts if all(label in labels for label in asked))


def measure(bench: Bench, applies: int, jobs: int, seconds: float) -> Iterator[Row]:
    """The whole benchmark, row by row."""
    # The first job warms up the caches.
    yield from _apply_rows([bench.apply(number) for number in range(applies + 1)][1:])
    idle = bench.used()
    bench.fill(jobs)
    before = bench.used()
    time.sleep(seconds)
    yield from _steady_rows(jobs, bench.used().since(before))
    resident, highest = bench.megabytes()
    target = f"under {MOST_MEGABYTES} MB"
    yield Row("resident memory", f"{resident:.0f} MB", target, resident < MOST_MEGABYTES)
    yield Row("the most that it was, while the jobs came", f"{highest:.0f} MB")
    before = bench.used()
    bench.touch_all()
    touched = bench.used().since(before)
    yield Row("looks at jobs when each of them was changed in what means nothing", f"{touched.looks:.0f}")
    yield Row("what they wrote", f"{touched.writes:.0f}", "0", touched.writes == 0)
    all_along = bench.used().since(idle)
    what = f"lists of all pods in the {all_along.seconds / 60:.0f} minutes since the first of these jobs came"
    yield Row(what, f"{all_along.pod_lists:.0f}", "0", all_along.pod_lists == 0)


def _apply_rows(taken: list[float]) -> Iterator[Row]:
    median, target = statistics.median(taken), f"under {MOST_SECONDS:g} s"
    yield Row("apply to the first probe's pod, median", f"{median:.2f} s", target, median < MOST_SECONDS)
    yield Row(f"the slowest of {len(taken)}", f"{max(taken):.2f} s")


def _steady_rows(jobs: int, used: Used) -> Iterator[Row]:
    share = used.cpu_seconds / used.seconds
    target = f"under {MOST_SHARE:.0%}"
    yield Row(f"{jobs} jobs in steady state: CPU", f"{share:.1%} of a core", target, share < MOST_SHARE)
    asked = ", ".join(f"{used.requests[verb] * 60 / used.seconds:.1f} {verb}" for verb in READS)
    yield Row("requests to the API server a minute", asked)
    yield Row("looks at jobs", f"{used.looks:.0f}")
    yield Row("what they wrote", f"{used.writes:.0f}", "0", used.writes == 0)


@contextmanager
def running(kubeconfig: str) -> Iterator[Bench]:
    """An operator and its namespace, both removed afterwards."""
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    with config.new_client_from_config(kubeconfig) as connection, tempfile.TemporaryDirectory() as directory:
        cluster, jobs = Cluster(connection), Jobs(connection, namespace)
        install_crd(connection)
        cluster.core.create_namespace({"metadata": {"name": namespace}})
        operator = OperatorProcess(kubeconfig, "", "localhost/virtual:1", Path(directory) / "operator.log")
        try:
            eventually(lambda: cluster.accepts_pods(namespace), "the namespace's default ServiceAccount")
            operator.start()
            with VirtualPods(cluster.core, namespace) as pods:
                yield Bench(cluster, operator, jobs, pods)
        finally:
            operator.stop()
            sys.stderr.write(operator.log())
            cluster.core.delete_namespace(namespace)
            eventually(lambda: namespace not in _namespaces(cluster), "the namespace to go", 900)


def _namespaces(cluster: Cluster) -> set[str]:
    return {each.metadata.name for each in cluster.core.list_namespace().items}


def report(arguments: argparse.Namespace, loads: tuple[float, float], rows: list[Row]) -> str:
    """The page."""
    table = "\n".join(f"| {row.what} | {row.measured} | {row.target} |" for row in rows)
    missed = [f"- Missed: {row.what}." for row in rows if row.is_kept is False]
    return f"""\
# What the operator costs

Made by `.venv/bin/python bench/operator_cost.py --applies {arguments.applies} --jobs {arguments.jobs} \
--seconds {arguments.seconds:g} > bench/results/operator.md`
with Kubernetes {KUBERNETES} on Linux {platform.release()}, {os.cpu_count()} cores that the cluster runs on too, load
average {loads[0]:.1f} before and {loads[1]:.1f} after. The pods are virtual: no scheduler takes them, and the benchmark
writes what a kubelet would. The first {arguments.applies} jobs come one after the other to an idle operator. Of the
{arguments.jobs}, 80% train, 10% wait for a node and are looked at every half a minute, 10% are suspended; steady state
is {arguments.seconds:g} s of that.

| what | measured | target |
|---|--:|--:|
{table}

{chr(10).join(missed) or "Every target is kept."}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--applies", type=int, default=20, help="jobs that are applied one at a time; default: 20")
    parser.add_argument("--jobs", type=int, default=500, help="jobs in steady state; default: 500")
    parser.add_argument("--seconds", type=float, default=300, help="how long the steady state is watched; default: 300")
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "dev.cluster", "kubeconfig"]
    asked = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    if asked.returncode != 0:
        sys.exit(f"{asked.stdout}{asked.stderr}".strip())
    before = os.getloadavg()[0]
    with running(asked.stdout.strip()) as bench:
        rows = list(measure(bench, arguments.applies, arguments.jobs, arguments.seconds))
        loads = before, os.getloadavg()[0]
    print(report(arguments, loads, rows))
    return 1 if any(row.is_kept is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
