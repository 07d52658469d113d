"""Debian packages: installs missing ones and downloads the Kubernetes source."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from dev.cluster.layout import CACHE
from dev.cluster.shell import ClusterError, run, run_logged, say
from dev.cluster.versions import DEBIAN, KUBERNETES_SOURCE, SUITABLE, Suitable

_POLICY = Path("/usr/sbin/policy-rc.d")
_NO_SERVICES = "#!/bin/sh\n# devcluster's, until it has installed its packages\nexit 101\n"
# Services enabled at boot: one link each.
ENABLED = Path("/etc/systemd/system")
# apt is never interrupted, since half-installed packages are worse; so a separate process cleans up.
# Disable services that packages enabled, or the next reboot would start them; upgrades keep this. Then allow service
# starts again.
_THEN_TIDY = """\
policy=$0 enabled=$1
shift
trap : HUP INT TERM
links() { find "$enabled" -type l; }
before=$(links)
"$@"
code=$?
links | grep -vxF -e "$before" | xargs -r -d '\\n' rm -f --
[ -z "$policy" ] || rm -f "$policy"
exit $code
"""


def missing(packages: Mapping[str, str]) -> list[str]:
    return [package for command, package in packages.items() if shutil.which(command) is None and not _is_file(command)]


def provide(packages: Mapping[str, str]) -> None:
    """Install missing packages and check the versions of present ones."""
    for command in packages:
        if command in SUITABLE and shutil.which(command) is not None:
            check_suits(command, SUITABLE[command])
    if absent := missing(packages):
        say(f"installing {', '.join(absent)}")
        _install(absent, CACHE / "apt.log")


def check_suits(command: str, wanted: Suitable) -> None:
    """Check the version of a program; one that reports none is accepted."""
    found = re.search(r"(?<![\w./-])(?:v|go)?(\d+)\.(\d+)", run([command, *wanted.question]))
    if found and not wanted.first <= (int(found[1]), int(found[2])) < wanted.beyond:
        raise ClusterError(
            f"{shutil.which(command)} is version {found[1]}.{found[2]}, and {wanted.why}: put Debian {DEBIAN}'s in its "
            "place, or another that suits before it on PATH"
        )


def _is_file(command: str) -> bool:
    return command.startswith("/") and Path(command).is_file()


def _install(packages: list[str], log: Path) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run_logged(["apt-get", "update"], log, env=environment)
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    run_logged([*_without_services(), *install], log, env=environment, survives=True)


def _without_services() -> list[str]:
    """Keep Debian from starting etcd and containerd as services on installation: the cluster runs its own."""
    let_services_start()
    policy = "" if _POLICY.exists() else str(_POLICY)
    if policy:
        _POLICY.write_text(_NO_SERVICES)
        _POLICY.chmod(0o755)
    return ["sh", "-c", _THEN_TIDY, policy, str(ENABLED)]


def let_services_start() -> None:
    """Remove our policy-rc.d, also after a crash; another one stays."""
    if _POLICY.is_file() and _POLICY.read_text() == _NO_SERVICES:
        _POLICY.unlink()


def debian_sources(kind: str, to: Path) -> None:
    """Write a private sources list (`deb` or `deb-src`) with the mirror that this machine's apt uses."""
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
    """Download and unpack Debian's source package without changing apt settings; return its directory and version."""
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
            f"Debian {DEBIAN}'s source package is now kubernetes {revision}, and dev/cluster/versions.py knows "
            f"{KUBERNETES_SOURCE}*: try the newer one there"
        )
    tree = directory / "kubernetes"
    run_logged(["dpkg-source", "--no-check", "-x", str(description), str(tree)], log)
    return tree, revision
