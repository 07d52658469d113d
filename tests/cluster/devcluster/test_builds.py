"""Builds that come to a bad end: nothing of them stays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from pods import eventually

from dev.cluster import builds, cluster, packages, shell
from dev.cluster.shell import ClusterError, run, run_logged
from dev.cluster.versions import BASE_IMAGE

pytestmark = [pytest.mark.xdist_group("devcluster"), pytest.mark.usefixtures("devcluster")]

_ROOT = Path(__file__).resolve().parents[3]
# A compiler that left its build's session, and a mount.
_BUILD = "mount -t tmpfs build {mount}; setsid sleep 471100 & sleep 471100"
_BUILDING = """
import sys
from pathlib import Path
from dev.cluster.shell import run_logged
run_logged(["sh", "-c", sys.argv[1]], Path(sys.argv[2]))
"""
_INSTALLING = """
import sys
from pathlib import Path
from dev.cluster import cluster, packages
here = Path(sys.argv[1])
cluster.COMMAND_LOCK, packages._POLICY = here / "lock", here / "policy-rc.d"
with cluster.alone():
    packages._install(["etcd-server"], here / "log")
"""
_APT = """#!/bin/sh
[ "$1" = update ] && exit
touch {here}/began
until [ -e {here}/go ]; do sleep 0.1; done
"""


def _started(script: str, *words: object, path: str = "") -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    return subprocess.Popen([sys.executable, "-c", script, *map(str, words)], cwd=_ROOT, env=environment)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _nobody_is_at_work() -> bool:
    try:
        with cluster.alone():
            return True
    except ClusterError:
        return False


def _sleepers() -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it may end meanwhile
            found += path.read_bytes() == b"sleep\x00471100\x00"
    return found


def test_a_killed_build_leaves_no_process_and_no_mount(tmp_path: Path) -> None:
    building = _started(_BUILDING, _BUILD.format(mount=tmp_path), tmp_path / "log")
    eventually(lambda: _sleepers() == 2, "the build to begin")
    _end(building)
    eventually(lambda: _sleepers() == 0, "the build to end")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_an_interruption_ends_commands_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "_ending", threading.Event())
    said: list[str] = []

    def build() -> None:
        with pytest.raises(ClusterError) as failed:
            run_logged(["sleep", "471100"], tmp_path / "log")
        said.append(str(failed.value))

    thread = threading.Thread(target=build)
    thread.start()
    eventually(lambda: _sleepers() == 1, "the build to begin")
    shell.end_bound()
    thread.join(timeout=60)
    assert said[0].startswith("`sleep 471100` failed (-9)")
    with pytest.raises(ClusterError, match="`true` was not begun: this command is being ended"):
        run_logged(["true"], tmp_path / "log")


def test_a_full_disk_ends_a_build_with_one_sentence(tmp_path: Path) -> None:
    script = f"mount -t tmpfs -o size=4k tiny {tmp_path} && head -c 99999 /dev/zero >{tmp_path}/x"
    with pytest.raises(ClusterError, match=r"^the disk is full \(/.*, .* GiB free now\): free some space there"):
        run_logged(["sh", "-c", script], tmp_path.with_suffix(".log"))


def test_package_installation_completes_before_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "COMMAND_LOCK", tmp_path / "lock")
    apt, policy = tmp_path / "apt-get", tmp_path / "policy-rc.d"
    apt.write_text(_APT.format(here=tmp_path))
    apt.chmod(0o755)
    installing = _started(_INSTALLING, tmp_path, path=str(tmp_path))
    eventually((tmp_path / "began").exists, "the installation to begin")
    _end(installing)
    assert policy.stat().st_mode & 0o111
    said = f"another devcluster command is at work .process {installing.pid}"
    with pytest.raises(ClusterError, match=said), cluster.alone():
        pytest.fail("apt is still at work")
    (tmp_path / "go").touch()
    eventually(lambda: not policy.exists(), "services to be let start again")
    eventually(_nobody_is_at_work, "the lock to be free")


def test_masked_services_stay_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(packages, "_POLICY", policy)
    monkeypatch.setattr(packages, "ENABLED", tmp_path)
    # Of a machine that stopped during an installation.
    policy.write_text(packages._NO_SERVICES)
    packages.let_services_start()
    assert not policy.exists()
    policy.write_text("#!/bin/sh\nexit 101\n")
    packages.let_services_start()
    run([*packages._without_services(), "true"])
    assert policy.exists()


@pytest.mark.usefixtures("images")
def test_leftovers_of_a_killed_image_build_are_removed() -> None:
    (container,) = run(["buildah", "from", BASE_IMAGE]).split()
    builds.remove_unfinished(BASE_IMAGE)
    assert container not in run(["buildah", "containers", "--format={{.ContainerName}}"])
