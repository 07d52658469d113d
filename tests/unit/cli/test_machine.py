"""What the machine has for processes, of files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memtune.units import GIB
from memtune_cli.input.machine import available_bytes, processors

_FREE = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"  # 8 GiB available


@pytest.fixture(autouse=True)
def of_16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def machine(root: Path, group: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": _FREE, "proc/self/cgroup": group, **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("group", "files", "gib", "cpus"),
    [
        pytest.param("", {}, 8, 16, id="no groups"),
        pytest.param(
            "0::/pod/own\n",
            {
                "sys/fs/cgroup/pod/own/memory.max": "max\n", "sys/fs/cgroup/pod/own/memory.current": f"{2 * GIB}\n",
                "sys/fs/cgroup/pod/own/cpu.max": "max 100000\n",
                # 6 - 5 + 1 GiB
                "sys/fs/cgroup/pod/memory.max": f"{6 * GIB}\n", "sys/fs/cgroup/pod/memory.current": f"{5 * GIB}\n",
                "sys/fs/cgroup/pod/memory.stat": f"active_file 7\ninactive_file {GIB}\n",
                "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
            },
            2, 2, id="a limit around the own group",
        ),
        pytest.param(
            "0::/host/path\n",
            {
                "sys/fs/cgroup/memory.max": f"{GIB}\n", "sys/fs/cgroup/memory.current": "0\n",
                "sys/fs/cgroup/cpu.max": "50000 100000\n",
            },
            1, 1, id="in a container that sees the path of the machine",
        ),
        pytest.param(
            "4:memory:/job\n2:cpu,cpuacct:/job\n",
            {
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3, 3, id="version 1",
        ),
    ],
)  # fmt: skip
def test_the_tightest_limit_counts(tmp_path: Path, group: str, files: dict[str, str], gib: int, cpus: int) -> None:
    root = machine(tmp_path, group, files)
    assert available_bytes(root) == gib * GIB
    assert processors(root) == cpus
