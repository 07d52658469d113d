"""How long the development cluster takes: `up`, `up` once more, `down`, and its smoke tests over and over.

Starts and ends clusters of its own, so none may be up. Builds and installs everything that they need before the first
measured one. Prints a page in Markdown; exit code 1 when a smoke test failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dev.cluster.layout import STATE  # noqa: E402  # the checkout's devcluster is no package
from dev.cluster.versions import KUBERNETES  # noqa: E402
from memtune.units import counted  # noqa: E402

DEVCLUSTER = (sys.executable, "-m", "dev.cluster")
SMOKE_TESTS = (sys.executable, "-m", "pytest", "-q", "tests/cluster/bare_cluster/test_smoke.py")


class Row(NamedTuple):
    """One line of the table: what was done how many times, and how long it took."""

    what: str
    seconds: Sequence[float]
    failures: int = 0


def timed(*command: str) -> tuple[float, int]:
    """The seconds and the exit code of a command, whose output goes to standard error."""
    began = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode
    return time.monotonic() - began, code


def seconds_of(*words: str) -> float:
    """The seconds of a devcluster command; a failing one ends the benchmark."""
    seconds, code = timed(*DEVCLUSTER, *words)
    if code != 0:
        sys.exit(f"`devcluster {' '.join(words)}` failed with exit code {code}: nothing is told by these times")
    return seconds


def measure(clusters: int, smokes: int) -> Iterator[Row]:
    """The whole benchmark, row by row."""
    for nodes in (1, 2):
        first, again, ends = [], [], []
        for _ in range(clusters):
            first.append(seconds_of("up", "--nodes", str(nodes)))
            again.append(seconds_of("up"))
            ends.append(seconds_of("down"))
        has = counted(nodes, "node")
        yield Row(f"`up`, {has}, from nothing", first)
        yield Row(f"`up`, {has}, already up", again)
        yield Row(f"`down`, {has}", ends)
    seconds_of("up", "--nodes", "2")
    runs = [timed(*SMOKE_TESTS) for _ in range(smokes)]
    seconds_of("down")
    taken, codes = [seconds for seconds, _ in runs], [code for _, code in runs]
    yield Row("the smoke tests, one run after the other", taken, sum(code != 0 for code in codes))


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| what | times | failed | median | slowest |", "|---|--:|--:|--:|--:|"]
    for what, seconds, failures in rows:
        median, slowest = statistics.median(seconds), max(seconds)
        lines.append(f"| {what} | {len(seconds)} | {failures} | {median:.1f} s | {slowest:.1f} s |")
    return "\n".join(lines)


def report(clusters: int, smokes: int, load: float, rows: Sequence[Row]) -> str:
    """The page."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"""\
# How long the development cluster takes

Made by `.venv/bin/python bench/cluster_times.py --clusters {clusters} --smokes {smokes} > bench/results/devcluster.md`
on {datetime.date.today():%Y-%m-%d}, with Kubernetes {KUBERNETES} on Linux {platform.release()}, {os.cpu_count()} cores,
{memory_bytes / (1 << 30):.0f} GiB of memory, load average {load:.1f} before.
Everything is warm: packages are installed, Kubernetes and the base image are built.

{table(rows)}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=3, help="clusters of each size; default: 3")
    parser.add_argument("--smokes", type=int, default=5, help="runs of the smoke tests; default: 5")
    arguments = parser.parse_args()
    if min(arguments.clusters, arguments.smokes) < 1:
        parser.error("of nothing there is no median: give at least 1")
    if "MEMTUNE_KUBECONFIG" in os.environ:
        sys.exit("MEMTUNE_KUBECONFIG names another cluster, and this measures devcluster's: unset it")
    if STATE.exists():
        sys.exit("a cluster is up, and this starts and ends its own: run `make cluster-down` first")
    load = os.getloadavg()[0]
    seconds_of("up", "--nodes", "2")
    seconds_of("load", "base")
    seconds_of("down")
    rows = list(measure(arguments.clusters, arguments.smokes))
    print(report(arguments.clusters, arguments.smokes, load, rows))
    return 1 if any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
