"""Debian's packages: what is missing is installed, and the source of Kubernetes is fetched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from devcluster.layout import CACHE
from devcluster.shell import ClusterError, run, run_logged, say
from devcluster.versions import DEBIAN, KUBERNETES_SOURCE

_POLICY = Path("/usr/sbin/policy-rc.d")
_NO_SERVICES = "#!/bin/sh\n# devcluster's, until it has installed its packages\nexit 101\n"
# apt is let end whatever happens to `up`: packages that are half installed are worse. So it is not `up` that cleans up.
_THEN_REMOVE = 'trap : HUP INT TERM; "$@"; code=$?; rm -f "$0"; exit $code'


def missing(packages: Mapping[str, str]) -> list[str]:
    return [package for command, package in packages.items() if shutil.which(command) is None and not _is_file(command)]


def provide(packages: Mapping[str, str]) -> None:
    """Install those that are missing."""
    if absent := missing(packages):
        say(f"installing {', '.join(absent)}")
        _install(absent, CACHE / "apt.log")


def _is_file(command: str) -> bool:
    return command.startswith("/") and Path(command).is_file()


def _install(packages: list[str], log: Path) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run_logged(["apt-get", "update"], log, env=environment)
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    run_logged([*_without_services(), *install], log, env=environment, survives=True)


def _without_services() -> list[str]:
    """Debian starts etcd and containerd as services when they are installed: the cluster runs its own instead."""
    let_services_start()
    if _POLICY.exists():
        return []
    _POLICY.write_text(_NO_SERVICES)
    _POLICY.chmod(0o755)
    return ["sh", "-c", _THEN_REMOVE, str(_POLICY)]


def let_services_start() -> None:
    """Take our own prohibition back, should the machine have stopped meanwhile; somebody else's stays."""
    if _POLICY.is_file() and _POLICY.read_text() == _NO_SERVICES:
        _POLICY.unlink()


def debian_sources(kind: str, to: Path) -> None:
    """Write a private sources list (`deb` or `deb-src`) with the mirror that this machine's apt itself uses."""
    fields = "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(LABEL)"
    targets = run(["apt-get", "indextargets", "--format", fields, "Created-By: Packages"]).splitlines()
    for uri, *identity in (target.split("|") for target in targets):
        if identity == [DEBIAN, "main", "Debian"]:
            to.write_text(f"Types: {kind}\nURIs: {uri}\nSuites: {DEBIAN}\nComponents: main\n")
            return
    raise ClusterError(
        f"this machine's apt has no source for Debian {DEBIAN} main: add one under /etc/apt/sources.list.d "
        "and run `apt-get update`"
    )


def fetch_kubernetes_source(directory: Path, log: Path) -> tuple[Path, str]:
    """Download and unpack Debian's source package, leaving the machine's apt settings alone: the tree, its version."""
    sources = directory / "kubernetes.sources"
    debian_sources("deb-src", sources)
    lists = directory / "lists"
    (lists / "partial").mkdir(parents=True)
    private = [
        *("-o", f"Dir::Etc::sourcelist={sources}"),
        *("-o", "Dir::Etc::sourceparts=/dev/null"),
        *("-o", f"Dir::State::lists={lists}"),
    ]
    run_logged(["apt-get", *private, "update"], log)
    run_logged(["apt-get", *private, "source", "--download-only", "kubernetes"], log, cwd=directory)
    (description,) = directory.glob("kubernetes_*.dsc")
    revision = description.stem.removeprefix("kubernetes_")
    if not revision.startswith(KUBERNETES_SOURCE):
        raise ClusterError(
            f"Debian {DEBIAN}'s source package is now kubernetes {revision}, and devcluster/versions.py knows "
            f"{KUBERNETES_SOURCE}*: try the newer one there"
        )
    tree = directory / "kubernetes"
    run_logged(["dpkg-source", "--no-check", "-x", str(description), str(tree)], log)
    return tree, revision
