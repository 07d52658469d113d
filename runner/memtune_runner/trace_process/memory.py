"""How much host memory processes take, what they share among it: a limit of each process alone leaves that out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

# What a process has in memory, which the kernel knows, and its part of that, for which it looks at every page. What a
# fork left to its children is in the whole of each of them.
_WHOLE = "status", re.compile(rb"^Rss(Anon|Shmem):\s*(\d+) kB$", re.MULTILINE)
_PART = "smaps_rollup", re.compile(rb"^Pss_(Anon|Shmem):\s*(\d+) kB$", re.MULTILINE)
_SHARED = Path("/dev/shm")
_BLOCK_BYTES = 512


class Memory:
    """What processes take from now on. Where there is no /proc, that is nothing."""

    def __init__(self) -> None:
        held = os.memfd_create("") if hasattr(os, "memfd_create") else None
        # Files that are memory: those without a place, and those of /dev/shm, if that is none of a disk.
        self._devices = {os.fstat(held).st_dev} if held is not None else set()
        if held is not None:
            os.close(held)
        if _SHARED.exists():
            self._devices |= {_SHARED.stat().st_dev} - {Path("/").stat().st_dev}
        self._opened: set[tuple[int, int]] = set()

    def exceeds(self, limit_bytes: int, processes: Sequence[int]) -> bool:
        """Whether they have more than that all together."""
        in_files = self._in_files(processes)
        return _used_bytes(_whole, processes, in_files) > limit_bytes < _used_bytes(_part, processes, in_files)

    def _in_files(self, processes: Iterable[int]) -> int:
        # One that was closed takes memory all the same; others use the folder as well.
        held = {key: size for key, size in _files(_SHARED) if key in self._opened}
        for process in processes:
            held |= {key: size for key, size in _files(Path("/proc", str(process), "fd")) if key[0] in self._devices}
        self._opened = set(held)
        return sum(held.values())


def _files(folder: Path) -> Iterator[tuple[tuple[int, int], int]]:
    """What tells each file there from all others, and what it takes; those of this user."""
    try:
        files = list(folder.iterdir())
    except OSError:  # the process has gone, or there is no such place
        return
    for file in files:
        try:
            found = file.stat()
        except OSError:
            continue
        if found.st_uid == os.getuid():
            yield (found.st_dev, found.st_ino), found.st_blocks * _BLOCK_BYTES


def _used_bytes(of_one: Callable[[int], tuple[int, int]], processes: Sequence[int], in_files: int) -> int:
    private, mapped = map(sum, zip((0, 0), *map(of_one, processes), strict=True))
    # Of what is in files a part may be mapped as well, and nobody tells which.
    return private + max(mapped, in_files)


def _whole(process: int) -> tuple[int, int]:
    return _told(process, *_WHOLE) or (0, 0)


def _part(process: int) -> tuple[int, int]:
    return _told(process, *_PART) or _whole(process)  # not every kernel, or what stands in for one, tells parts


def _told(process: int, name: str, pattern: re.Pattern[bytes]) -> tuple[int, int] | None:
    """What a process has for itself, and what it has mapped of what may be shared."""
    try:
        found = dict(pattern.findall(Path("/proc", str(process), name).read_bytes()))
    except OSError:  # it has gone meanwhile, or there is no such file
        return None
    return (1024 * int(found.get(b"Anon", 0)), 1024 * int(found.get(b"Shmem", 0))) if found else None
