"""The total host memory of several processes, including shared memory, which per-process limits miss."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

# A process's resident memory, which the kernel keeps, and its proportional share, for which the kernel walks every
# page. Pages shared with forked children count in the resident memory of each of them.
_WHOLE = "status", re.compile(rb"^Rss(Anon|Shmem):\s*(\d+) kB$", re.MULTILINE)
_PART = "smaps_rollup", re.compile(rb"^Pss_(Anon|Shmem):\s*(\d+) kB$", re.MULTILINE)
_SHARED = Path("/dev/shm")
_BLOCK_BYTES = 512


class Memory:
    """The memory that processes use from now on; 0 without /proc."""

    def __init__(self) -> None:
        held = os.memfd_create("") if hasattr(os, "memfd_create") else None
        # Memory-backed files: memfds, and those in /dev/shm unless it is on a disk.
        self._devices = {os.fstat(held).st_dev} if held is not None else set()
        if held is not None:
            os.close(held)
        if _SHARED.exists():
            self._devices |= {_SHARED.stat().st_dev} - {Path("/").stat().st_dev}
        self._opened: set[tuple[int, int]] = set()

    def exceeds(self, limit_bytes: int, processes: Sequence[int]) -> bool:
        """Whether all processes together use more than the limit."""
        in_files = self._in_files(processes)
        return _used_bytes(_whole, processes, in_files) > limit_bytes < _used_bytes(_part, processes, in_files)

    def _in_files(self, processes: Iterable[int]) -> int:
        # A closed file keeps its memory; other programs use the folder as well.
        held = {key: size for key, size in _files(_SHARED) if key in self._opened}
        for process in processes:
            held |= {key: size for key, size in _files(Path("/proc", str(process), "fd")) if key[0] in self._devices}
        self._opened = set(held)
        return sum(held.values())


def _files(folder: Path) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield identity and size of each of this user's files in a folder."""
    try:
        files = list(folder.iterdir())
    except OSError:  # the process is gone, or there is no such folder
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
    # Memory in files may be mapped as well; the overlap is unknown.
    return private + max(mapped, in_files)


def _whole(process: int) -> tuple[int, int]:
    return _matched(process, *_WHOLE) or (0, 0)


def _part(process: int) -> tuple[int, int]:
    return _matched(process, *_PART) or _whole(process)  # not every kernel, or its emulation, has proportional shares


def _matched(process: int, name: str, pattern: re.Pattern[bytes]) -> tuple[int, int] | None:
    """Return a process's private memory and its mapped memory that may be shared."""
    try:
        found = dict(pattern.findall(Path("/proc", str(process), name).read_bytes()))
    except OSError:  # the process is gone, or there is no such file
        return None
    return (1024 * int(found.get(b"Anon", 0)), 1024 * int(found.get(b"Shmem", 0))) if found else None
