"""The search for what a cluster left behind finds it: a blind search would pass for a `down` that leaves nothing."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from leftovers import Leftovers

from dev.cluster import packages
from dev.cluster.shell import run

# The cluster's programs are looked for, and so they must be there.
pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("devcluster", "kubeconfig")]


def test_all_kinds_of_leftovers_are_detected(tmp_path: Path) -> None:
    leftovers = Leftovers()
    with ExitStack() as undone:
        # Whatever its name is, and whoever is its parent now.
        orphan = int(run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"]))
        undone.callback(os.kill, orphan, signal.SIGKILL)
        run(["mount", "-t", "tmpfs", "tiny", str(tmp_path)])
        undone.callback(run, ["umount", str(tmp_path)])
        run(["ip", "link", "add", "memtune8", "type", "veth", "peer", "memtune9"])
        undone.callback(run, ["ip", "link", "delete", "memtune8"])
        run(["ip", "address", "add", "10.213.9.1/24", "dev", "memtune8"])
        run(["ip", "link", "set", "memtune8", "up"])
        run(["iptables", "-N", "MEMTUNE-TRIAL"])
        undone.callback(run, ["iptables", "-X", "MEMTUNE-TRIAL"])
        wants = packages.ENABLED / "memtune-trial.target.wants"
        wants.mkdir(parents=True)
        undone.callback(wants.rmdir)
        unit = wants / "memtune-trial.service"
        unit.symlink_to("/lib/systemd/system/memtune-trial.service")
        undone.callback(unit.unlink)
        left = leftovers.left()
    assert f"process {orphan} sleep" in " ".join(left)
    assert {line.split()[0] for line in left} == {
        "address",
        "enabled",
        "interface",
        "mount",
        "process",
        "route",
        "rule",
    }
