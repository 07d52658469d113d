"""The ways to run the demo: their effects on the machine, and which one `make demo` selects."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tools.demo.terminal import ROOT, DemoError

_ENGINE_SECONDS = 15


@dataclass(frozen=True)
class Way:
    """A way to run the demo. ``environment`` is its part of tools/env.sh; ``meanwhile`` runs in parallel to it."""

    title: str
    does: str
    installs: str
    takes: str
    ends: str
    removes: str = ""
    environment: str = "demo"
    meanwhile: tuple[str, ...] = ()


_CHART = "MemTune's CRD, and its chart as release memtune in the namespace memtune-demo-system"
_CHECKOUT = "here .venv, 130 MB"

WAYS = {
    "current": Way(
        title="on the cluster of kubectl's current context",
        does="installs MemTune there and runs examples/quickstart.yaml in the namespace memtune-demo",
        installs=f"on the cluster {_CHART}; {_CHECKOUT}",
        takes="about 3 minutes, and the time that nodes take to pull the images",
        ends="`make demo-clean CLUSTER=current` removes the release and both namespaces, not the CRD",
        removes="what an earlier demo left: the release memtune in memtune-demo-system, and the namespace memtune-demo "
        "with all that is in it; one that no demo has labelled is never removed, and ends the demo",
    ),
    "kind": Way(
        title="on a kind cluster in this machine's Docker",
        does="makes the kind cluster memtune-demo, builds two images, and runs examples/quickstart.yaml on it",
        installs=f"in Docker kind's node, the images memtune-operator and memtune-runner, 4 GB; on kind {_CHART}; "
        f"{_CHECKOUT}; your kubeconfig is left alone",
        takes="10 minutes the first time, by the network; then about 3",
        ends="`make demo-clean` deletes the cluster if a demo made it, `make demo-clean CLUSTER=kind` in any case; "
        "the images stay",
    ),
    "devcluster": Way(
        title="on a Kubernetes made from Debian's packages (docs/devcluster.md)",
        does="starts two nodes, Prometheus and the dashboards, and runs examples/quickstart.yaml on them",
        installs="Debian packages by apt-get (containerd, etcd, Go, npm, Prometheus, ...), what is built from them in "
        f"~/.cache/memtune, images in /var/lib/containers, 22 GB in all; on the cluster {_CHART}; {_CHECKOUT}",
        takes="10 to 20 minutes the first time, since Kubernetes is compiled; then about 3",
        ends="`make demo-clean` ends the cluster; packages and what was built stay for the next time",
        meanwhile=(sys.executable, "-m", "dev.cluster", "up", "--nodes", "2", "--build", "operator", "runner", "page"),
    ),
    "none": Way(
        title="without a cluster, with processes of this machine",
        does="runs examples/quickstart.yaml by `memtune run`, on a virtual GPU of 256 MiB",
        installs="only .venv in this checkout, with the CPU build of torch, 1 GB",
        takes="2 minutes, and the time to download torch (200 MB) once",
        ends="`make demo-clean` removes build/demo",
        environment="demo-local",
    ),
}


def choose(asked: str) -> tuple[str, str]:
    """The selected way; if it is the one without a cluster, also what a cluster would need."""
    if asked:
        if asked not in WAYS:
            raise DemoError(f"CLUSTER={asked} is not known; give one of {', '.join(WAYS)}, or none to have one chosen")
        if lacking := lacks(asked):
            raise DemoError(f"CLUSTER={asked} cannot be used here: {lacking}")
        return asked, ""
    reasons = {name: lacking() for name, lacking in _LACKING.items()}
    for name, reason in reasons.items():
        if not reason:
            return name, ""
    return "none", (
        "For the same on a Kubernetes, install Docker and kind and run `make demo` again, or run `make demo "
        f"CLUSTER=current` with a cluster of yours ({'; '.join(reasons.values())})."
    )


def lacks(name: str) -> str:
    """The requirements of a way that this machine lacks; empty if none."""
    return _LACKING[name]() if name in _LACKING else ""


def _kind_lacks() -> str:
    for command in ("docker", "kind"):
        if shutil.which(command) is None:
            return f"there is no command `{command}`"
    try:
        engine = subprocess.run(["docker", "info"], capture_output=True, timeout=_ENGINE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"`docker info` does not answer in {_ENGINE_SECONDS} s"
    return "`docker info` finds no engine" if engine.returncode else ""


def _devcluster_lacks() -> str:
    asked = [sys.executable, "-m", "dev.cluster", "can-run"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip() if done.returncode else ""


_LACKING = {"kind": _kind_lacks, "devcluster": _devcluster_lacks}


def registry(environ: Mapping[str, str]) -> str:
    """The registry from which the nodes of the current context pull the images."""
    if not environ.get("REGISTRY"):
        raise DemoError(
            "CLUSTER=current needs images that its nodes can pull, and REGISTRY is not set: build and push "
            'REGISTRY/memtune-operator and REGISTRY/memtune-runner as "On a cluster" in docs/getting-started.md says, '
            "then run `make demo CLUSTER=current REGISTRY=...`, with TAG=... if the tag is not that of the chart"
        )
    return environ["REGISTRY"]


def announcement(name: str, environ: Mapping[str, str]) -> str:
    """The message that says what the way will do, printed first."""
    way = WAYS[name]
    lines = [f"make demo: {way.title} (CLUSTER={name})"]
    lines += [
        f"  {word:<9} {getattr(way, word)}"
        for word in ("does", "removes", "installs", "takes", "ends")
        if getattr(way, word)
    ]
    if name == "current":
        lines += [f"  context   the current one of {environ.get('KUBECONFIG') or '~/.kube/config'}"]
    return "\n".join(lines)
