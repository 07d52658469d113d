"""Builds the dashboards page with npm from page_sources; it is cached outside the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from pathlib import Path

from dev.cluster import packages
from dev.cluster.layout import CACHE
from dev.cluster.shell import run_logged, say
from dev.cluster.versions import PAGE_PACKAGES

_SOURCES = Path(__file__).with_name("page_sources")


def directory() -> Path:
    """The directory of the built page, existing or not."""
    content = hashlib.sha256()
    for path in sorted(path for path in _SOURCES.rglob("*") if path.is_file()):
        content.update(f"{path.relative_to(_SOURCES)}\0".encode() + path.read_bytes())
    return CACHE / f"page-{content.hexdigest()[:12]}"


def provide() -> None:
    """Install the build tools, if these sources were never built."""
    if not directory().is_dir():
        packages.provide(PAGE_PACKAGES)


def build() -> None:
    """Build the page, if these sources were never built; it appears in one rename."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "page.lock").open("w") as lock:
        # A concurrent build may produce the same directory.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory().is_dir():
            _build(directory(), CACHE / "page.log")


def _build(page: Path, log: Path) -> None:
    say(f"building the page of the dashboards (once, some minutes; log: {log})")
    log.unlink(missing_ok=True)
    work = CACHE / "page-build"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(_SOURCES, work)
    run_logged(["npm", "ci", "--no-audit", "--no-fund"], log, cwd=work)
    run_logged(["npm", "run", "build"], log, cwd=work)
    (work / "dist").rename(page)
    shutil.rmtree(work)
