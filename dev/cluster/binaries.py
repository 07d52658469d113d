"""Builds the Kubernetes binaries from Debian's source package; they are cached outside the checkout.

The cache directory is named after everything that determines its content and appears in one rename: an interrupted
build leaves only a `build` directory, which the next command removes.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
from pathlib import Path

from dev.cluster.layout import CACHE
from dev.cluster.packages import fetch_kubernetes_source
from dev.cluster.shell import GO_SETTINGS, ClusterError, run_logged
from dev.cluster.versions import (
    CADVISOR_DOCKER,
    KUBERNETES,
    KUBERNETES_COMMANDS,
    KUBERNETES_SOURCE,
    KUBERNETES_TAGS,
    REFLECT2,
)

# No debug information: it took a tenth of the time of compiling Go's own compiler.
_COMPILER_FLAGS = "-dwarf=false"
_PAUSE_SOURCE = Path(__file__).with_name("pause.go")
_WORK = CACHE / "build"


def _name() -> str:
    recipe = hashlib.sha256()
    versions = (KUBERNETES_SOURCE, *KUBERNETES_COMMANDS, KUBERNETES_TAGS, REFLECT2, CADVISOR_DOCKER, _COMPILER_FLAGS)
    for ingredient in (*versions, inspect.getsource(_patch), _PAUSE_SOURCE.read_text()):
        recipe.update(ingredient.encode())
    return f"kubernetes-{KUBERNETES}-{recipe.hexdigest()[:12]}"


def _built() -> list[Path]:
    """The builds of this recipe, from any revision of the source package, newest last."""
    return sorted(CACHE.glob(f"{_name()}-*"), key=lambda path: path.stat().st_mtime)


def command(name: str) -> str:
    if not (built := _built()):
        raise ClusterError(
            f"{CACHE} has no Kubernetes of this checkout: set HOME and XDG_CACHE_HOME as they were for `up`, or run "
            "`python3 -m dev.cluster down`, then `python3 -m dev.cluster up`, which builds it"
        )
    return str(built[-1] / name)


def are_built() -> bool:
    return bool(_built())


def build() -> None:
    work, log = _WORK, CACHE / "build.log"
    remove_unfinished()
    log.unlink(missing_ok=True)
    work.mkdir(parents=True)
    tree, revision = fetch_kubernetes_source(work, log)
    _patch(tree / "vendor")
    output = _make(tree, work, log)
    run_logged(["go", "build", "-o", str(output / "pause"), str(_PAUSE_SOURCE)], log, env=_go(tree, work))
    output.rename(CACHE / f"{_name()}-{revision}")
    shutil.rmtree(work)


def remove_unfinished() -> None:
    shutil.rmtree(_WORK, ignore_errors=True)


def _patch(vendor: Path) -> None:
    shutil.rmtree(vendor / REFLECT2)
    shutil.copytree(Path("/usr/share/gocode/src") / REFLECT2, vendor / REFLECT2)
    source = vendor / CADVISOR_DOCKER
    before, wait, after = source.read_text().partition("time.Sleep(rootDirRetryPeriod)")
    if not wait:
        raise ClusterError(f"{CADVISOR_DOCKER} has changed: look at it anew before building {KUBERNETES}")
    source.write_text(f"{before}break{after}")


def _go(tree: Path, work: Path) -> dict[str, str]:
    go = {"GOPATH": str(tree / ".go"), "GOCACHE": str(work / "gocache"), "GOPROXY": "off", "CGO_ENABLED": "0"}
    return {**os.environ, **go, "GO111MODULE": "on", "GOFLAGS": "", **GO_SETTINGS}


def _make(tree: Path, work: Path, log: Path) -> Path:
    """Build with Kubernetes' makefile, which generates code and requires a GOPATH."""
    link = tree / ".go" / "src" / "k8s.io" / "kubernetes"
    link.parent.mkdir(parents=True)
    link.symlink_to(tree)
    major, minor, _ = KUBERNETES.split(".")
    settings = {
        "GOFLAGS": f"-mod=vendor -tags={KUBERNETES_TAGS}",
        "GOGCFLAGS": _COMPILER_FLAGS,
        "KUBE_GIT_VERSION": f"v{KUBERNETES}",
        "KUBE_GIT_MAJOR": major,
        "KUBE_GIT_MINOR": minor,
        "KUBE_GIT_COMMIT": "unknown",
        "KUBE_GIT_TREE_STATE": "archive",
    }
    what = " ".join(f"cmd/{name}" for name in KUBERNETES_COMMANDS)
    run_logged(["make", "-C", str(link), f"WHAT={what}"], log, env={**_go(tree, work), **settings})
    output = work / "output"
    output.mkdir()
    for name in KUBERNETES_COMMANDS:
        shutil.copy2((tree / "_output" / "bin" / name).resolve(), output / name)
    return output
