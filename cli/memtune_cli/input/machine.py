"""Memory and processors for the processes that MemTune starts on this machine, within its cgroup limits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def processors(root: Path = _ROOT) -> int:
    """Return how many processors this program may use at a time, at least one."""
    found = [len(os.sched_getaffinity(0)), *_quotas(root)]
    return max(1, int(min(found)))


def available_bytes(root: Path = _ROOT) -> int:
    """Return how much memory new processes can have before the kernel swaps or kills."""
    text = (root / "proc/meminfo").read_text(encoding="ascii")
    free = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    return min([1024 * int(free[1]) if free else 0, *_left(root)])


def _left(root: Path) -> Iterator[int]:
    """Yield what each group has left; the kernel takes back files that nobody has used for long."""
    for group in _groups(root, ""):
        yield from _left_of(group, "memory.max", "memory.current", "inactive_file")
    for group in _groups(root, "memory"):
        yield from _left_of(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left_of(group: Path, limit: str, usage: str, files: str) -> Iterator[int]:
    most, used = _numbers(group / limit), _numbers(group / usage)
    if most and used:
        again = re.search(rf"^{files} (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
        yield most[0] - used[0] + (int(again[1]) if again else 0)


def _quotas(root: Path) -> Iterator[float]:
    for group in _groups(root, ""):
        if len(limit := _numbers(group / "cpu.max")) == 2:
            yield limit[0] / limit[1]
    for group in _groups(root, "cpu"):
        quota, period = _numbers(group / "cpu.cfs_quota_us"), _numbers(group / "cpu.cfs_period_us")
        if quota and period:
            yield quota[0] / period[0]


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield this program's group of a controller and those around it; without a controller, those of version 2.

    In a container, whose own group lies at the top, the path is that of the machine and leads nowhere.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
            own = top / path.strip("/")
            yield from (each for each in (own, *own.parents) if each == top or top in each.parents)


def _numbers(file: Path) -> list[int]:
    """Return the numbers in a file; none if it says `max` or -1, which is no limit, or is not there."""
    words = _text(file).split()
    return [int(each) for each in words] if all(map(str.isdecimal, words)) else []


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""
