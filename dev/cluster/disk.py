"""Room on the machine's disks: asked for before work begins, and a sentence when it runs out all the same."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dev.cluster.layout import CACHE, IMAGE_STORAGE, PACKAGES, STATE

GIB = 1 << 30

# What a compiler, a package manager or an image builder says, in lower case.
_COMPLAINTS = ("no space left on device", "you don't have enough free space")


@dataclass(frozen=True)
class Need:
    """What somebody will write below a directory, which need not be there yet."""

    directory: Path
    size_bytes: int
    purpose: str


def lacking(needs: Iterable[Need]) -> str:
    """What the disks have no room for; empty when they have. What goes to the same disk is added up."""
    by_disk = defaultdict(list)
    for need in needs:
        number, _ = _disk(need.directory)
        by_disk[number].append(need)
    for those in by_disk.values():
        _, free_bytes = _disk(those[0].directory)
        needed_bytes = sum(need.size_bytes for need in those)
        if free_bytes < needed_bytes:
            wanted = " and ".join(f"{need.purpose} ({need.size_bytes / GIB:.0f} GiB)" for need in those)
            return (
                f"the disk of {those[0].directory} has {free_bytes / GIB:.1f} GiB free, and this needs "
                f"{needed_bytes / GIB:.0f} GiB: {wanted}; free some space there"
            )
    return ""


def is_full(said: str) -> bool:
    """Whether this is the complaint of a program that found no room."""
    return any(complaint in said.lower() for complaint in _COMPLAINTS)


def full(path: Path | None = None) -> str:
    """Which disk is full and what to do; without a path the fullest of those that are written to."""
    places = (path,) if path else (CACHE, STATE, IMAGE_STORAGE, PACKAGES, Path(tempfile.gettempdir()))
    free_bytes, place = min((_disk(each)[1], each) for each in places)
    return (
        f"the disk is full ({place}, {free_bytes / GIB:.1f} GiB free now): free some space there "
        "(`buildah rmi --prune` throws old layers of images away), then `down` and `up`"
    )


def _disk(path: Path) -> tuple[int, int]:
    """The number of the disk that the path is on or will be on, and its free bytes."""
    existing = next(each for each in (path, *path.parents) if each.exists())
    return existing.stat().st_dev, shutil.disk_usage(existing).free
