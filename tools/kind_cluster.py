"""Manages a kind cluster for the cluster tests: `up KUBERNETES`, `test [PYTEST ARGUMENT ...]`, `down`.

kind's nodes are Docker containers. `up` prepares them for the tests: MemTune's images and a Python image under the
expected names, eight fake GPUs per node, and a directory shared with this machine at the same path.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kubernetes import client, config

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from dev.cluster.builds import OURS, image_name  # noqa: E402  # the checkout is only now in the path
from dev.cluster.layout import GPUS_PER_NODE  # noqa: E402
from dev.cluster.versions import BASE_IMAGE  # noqa: E402

CLUSTER = "memtune-tests"
# The base image of our Dockerfiles, which has Python and is present anyway.
PYTHON_IMAGE = "python:3.11-slim-bookworm"
GPU = "nvidia.com/gpu"
# A kubelet reports its node's images twice a minute.
_SECONDS = 180.0


class Release(NamedTuple):
    """A node image and the kind release it was published with; other releases may not support it."""

    kind: str
    node_image: str


RELEASES = {
    "1.25": Release(
        "v0.24.0", "kindest/node:v1.25.16@sha256:6110314339b3b44d10da7d27881849a87e092124afab5956f2e10ecdb463b025"
    ),
    "1.29": Release(
        "v0.27.0", "kindest/node:v1.29.14@sha256:8703bd94ee24e51b778d5556ae310c6c0fa67d761fae6379c8e0bb480e6fea29"
    ),
    "1.33": Release(
        "v0.31.0", "kindest/node:v1.33.7@sha256:d26ef333bdb2cbe9862a0f7c3803ecc7b4303d8cea8e814b481b09949d353040"
    ),
    "1.36": Release(
        "v0.33.0", "kindest/node:v1.36.4@sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed"
    ),
}


class KindError(Exception):
    """An error that says what is wrong and what to do."""


def up(kubernetes: str, work: Path) -> None:
    """Build and pull the images, start two nodes and prepare them for the tests."""
    _require_programs()
    images = [*build_images(), _base_image()]
    shared = work / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    mounts = [{"hostPath": str(shared), "containerPath": str(shared)}]
    nodes = [{"role": role, "extraMounts": mounts} for role in ("control-plane", "worker")]
    cluster = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}
    # JSON, which is valid YAML.
    (work / "cluster.yaml").write_text(json.dumps(cluster, indent=1))
    image = RELEASES[kubernetes].node_image
    options = [f"--image={image}", f"--config={work / 'cluster.yaml'}", f"--kubeconfig={kubeconfig(work)}"]
    _run("kind", "create", "cluster", f"--name={CLUSTER}", "--wait=180s", *options)
    _run("kind", "load", "docker-image", f"--name={CLUSTER}", *images)
    with config.new_client_from_config(str(kubeconfig(work))) as connection:
        _prepare_nodes(client.CoreV1Api(connection), images)


def test(work: Path, arguments: list[str]) -> int:
    """Run the cluster tests, or the named ones, on the running cluster; return pytest's exit code."""
    if not kubeconfig(work).is_file():
        raise KindError("no kind cluster is up: run `make kind` first")
    # Each run has its own directory: files left by pods of an earlier run belong to other users.
    temporary = tempfile.mkdtemp(dir=work / "shared")
    command = [sys.executable, "-m", "pytest", f"--basetemp={temporary}", *(arguments or ["tests/cluster"])]
    environment = {**os.environ, "MEMTUNE_KUBECONFIG": str(kubeconfig(work))}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def down(work: Path) -> None:
    """Delete the cluster. A node removes the pods' files, which belong to other users."""
    _require_programs()
    find = ["find", str(work / "shared"), "-mindepth", "1", "-delete"]
    for node in _run("kind", "get", "nodes", f"--name={CLUSTER}", captured=True).split():
        # Fails on a stopped node, but the cluster must be deleted anyway.
        if subprocess.run(["docker", "exec", node, *find], check=False).returncode == 0:
            break
    _run("kind", "delete", "cluster", f"--name={CLUSTER}", f"--kubeconfig={kubeconfig(work)}")
    shutil.rmtree(work, ignore_errors=True)
    if work.exists():
        raise KindError(f"the cluster has ended, but files in {work} belong to its pods: remove it as root")


def _require_programs() -> None:
    for program in ("docker", "kind"):
        if shutil.which(program) is None:
            raise KindError(f"there is no {program} on this machine: install it, or use `make cluster` on Debian 12")


def kubeconfig(work: Path) -> Path:
    """The cluster's own kubeconfig."""
    return work / "kubeconfig"


def build_images() -> list[str]:
    """Build MemTune's images with Docker for a cluster without GPUs; return their names."""
    names = []
    for image, settings in OURS.items():
        names.append(image_name(image))
        arguments = [f"--build-arg={setting}" for setting in settings]
        _run("docker", "build", f"--file=images/{image}.Dockerfile", f"--tag={names[-1]}", *arguments, ".")
    return names


def _base_image() -> str:
    _run("docker", "pull", PYTHON_IMAGE)
    _run("docker", "tag", PYTHON_IMAGE, BASE_IMAGE)
    return BASE_IMAGE


# Any: the client's types do not allow dictionaries as bodies.
def advertise_gpus(api: Any, node: str) -> None:
    """Advertise fake GPUs on a node, for the scheduler."""
    api.patch_node_status(node, {"status": {"capacity": {GPU: str(GPUS_PER_NODE)}}})


def _prepare_nodes(api: Any, images: list[str]) -> None:
    """Untaint both nodes, add fake GPUs and wait until the nodes report everything."""
    for node in api.list_node().items:
        api.patch_node(node.metadata.name, {"spec": {"taints": None}})
        advertise_gpus(api, node.metadata.name)
    _wait(lambda: [said for node in api.list_node().items for said in _missing(node, images)])


def _missing(node: Any, images: list[str]) -> list[str]:
    """The resources that a node does not report yet."""
    reported = {name for image in node.status.images or [] for name in image.names or []}
    missing = [f"{node.metadata.name} does not report image {image}" for image in images if image not in reported]
    if int((node.status.allocatable or {}).get(GPU, 0)) != GPUS_PER_NODE:
        missing.append(f"{node.metadata.name} does not report {GPUS_PER_NODE} GPUs")
    return missing


def _wait(missing: Callable[[], list[str]]) -> None:
    deadline = time.monotonic() + _SECONDS
    while found := missing():
        if time.monotonic() > deadline:
            raise KindError(f"after {_SECONDS:.0f} s: {'; '.join(found)}. `make kind-down`, then `make kind` again")
        time.sleep(1)


def _run(*command: str, captured: bool = False) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE if captured else None, text=True, check=False)
    if done.returncode != 0:
        raise KindError(f"`{' '.join(command)}` ended with {done.returncode}")
    return done.stdout or ""


def main(words: list[str], work: Path = ROOT / "build" / "kind") -> int:
    parser = argparse.ArgumentParser(prog="tools/kind_cluster.py", description="a kind cluster for the cluster tests")
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", help="start it, with our images and eight GPUs on each of two nodes")
    starting.add_argument("kubernetes", choices=RELEASES)
    testing = commands.add_parser("test", help="run tests/cluster on it, or what is named")
    testing.add_argument("arguments", nargs=argparse.REMAINDER)
    commands.add_parser("down", help="end it")
    given = parser.parse_args(words)
    try:
        if given.command == "test":
            return test(work, given.arguments)
        if given.command == "up":
            up(given.kubernetes, work)
            print(f"export MEMTUNE_KUBECONFIG={kubeconfig(work)}")
        else:
            down(work)
    except KindError as error:
        print(f"kind: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
