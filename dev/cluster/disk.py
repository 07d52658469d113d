"""Disk space: checked before work begins, and the error message when a disk is full."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dev.cluster.layout import CACHE, IMAGE_STORAGE, PACKAGES, STATE

GIB = 1 << 30

# The messages of compilers, package managers and image builders, in lower case.
_COMPLAINTS = ("no space left on device", "you don't have enough free space")


@dataclass(frozen=True)
class Need:
    """The space needed below a directory, which may not exist yet."""

    directory: Path
    size_bytes: int
    purpose: str


def lacking(needs: Iterable[Need]) -> str:
    """The message about disks without enough space, else empty. Needs on the same disk are added up."""
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
    """Whether a program's output reports a full disk."""
    return any(complaint in said.lower() for complaint in _COMPLAINTS)


def full(path: Path | None = None) -> str:
    """Which disk is full and what to do; without a path, the fullest one that is written to."""
    places = (path,) if path else (CACHE, STATE, IMAGE_STORAGE, PACKAGES, Path(tempfile.gettempdir()))
    free_bytes, place = min((_disk(each)[1], each) for each in places)
    return (
        f"the disk is full ({place}, {free_bytes / GIB:.1f} GiB free now): free some space there "
        "(`buildah rmi --prune` throws old layers of images away), then `down` and `up`"
    )


def _disk(path: Path) -> tuple[int, int]:
    """The device number of the path's (future) disk, and its free bytes."""
    existing = next(each for each in (path, *path.parents) if each.exists())
    return existing.stat().st_dev, shutil.disk_usage(existing).free
