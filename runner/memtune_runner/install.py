"""The `install` subcommand: copies the runner and its dependencies into a directory of the user's pod."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import memtune
import memtune_runner
from memtune_runner.vendored import PRIVATE_PACKAGE, prometheus_client

# The core packages that the runner imports; import-linter allows no others.
CORE_PACKAGES = frozenset({"allocator", "gpus", "model", "plans", "wire"})
# Bytecode is copied with the times of its sources, so that a Python of this version need not compile them in each rank;
# but no file that another process is about to replace.
_NOT_COPIED = shutil.ignore_patterns("*.pyc.*")
_LICENSES = ("LICENSE", "NOTICE")


def main(directory: str) -> int:
    """Install the runner into ``directory`` and return the exit code."""
    try:
        install(Path(directory).absolute())
    except OSError as error:
        print(f"memtune: the runner cannot be installed into {directory}: {error}", file=sys.stderr)
        return 1
    return 0


def install(directory: Path) -> None:
    """Install the runner into ``directory`` atomically, replacing a previous installation."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".memtune-", dir=directory.parent) as temporary:
        new, old = Path(temporary, "new"), Path(temporary, "old")
        _copy(new)
        if directory.exists():
            directory.rename(old)
        new.rename(directory)


def _copy(target: Path) -> None:
    shutil.copytree(_home(memtune_runner), target / "memtune_runner", ignore=_NOT_COPIED)
    core = _home(memtune)
    (target / "memtune").mkdir()
    for path in core.iterdir():
        if path.name in CORE_PACKAGES:
            shutil.copytree(path, target / "memtune" / path.name, ignore=_NOT_COPIED)
        elif path.suffix == ".py":
            shutil.copyfile(path, target / "memtune" / path.name)
    # Under a private name: the image may have its own copy, in any version.
    private = target / Path(*PRIVATE_PACKAGE.split("."))
    shutil.rmtree(private, ignore_errors=True)
    client = prometheus_client()
    shutil.copytree(_home(client), private / "prometheus_client", ignore=_NOT_COPIED)
    (private / "__init__.py").write_text('"""Packages that the runner carries along."""\n', encoding="ascii")
    for path in _licenses():
        shutil.copyfile(path, private / "prometheus_client" / path.name)
    _make_readable(target)


def _home(package: object) -> Path:
    return Path(str(getattr(package, "__file__", None))).parent


def _licenses() -> list[Path]:
    """Return the licences of the vendored packages, which are copied along."""
    try:
        found = files("prometheus_client") or []
    except PackageNotFoundError:
        return []  # this copy was installed with its licence
    return [Path(str(each.locate())) for each in found if each.name in _LICENSES]


def _make_readable(target: Path) -> None:
    """Make the files readable for every user: the user's container may run under another uid than this one."""
    for path, _, names in os.walk(target):
        Path(path).chmod(0o755)
        for name in names:
            Path(path, name).chmod(0o644)
