"""An installation enables no service at boot, and masks none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from dev.cluster import packages
from dev.cluster.shell import ClusterError
from dev.cluster.versions import SUITABLE

# What apt does to the units of a package, with an alias and an escaped name.
APT = r"""
mkdir -p multi-user.target.wants
for unit in etcd2.service multi-user.target.wants/etcd.service "multi-user.target.wants/a\x2db.service"; do
    ln -s /lib/systemd/system/etcd.service "$unit"
done
test -e ../policy-rc.d
exit 3
"""


@pytest.fixture
def enabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    units = tmp_path / "system"
    (units / "timers.target.wants").mkdir(parents=True)
    (units / "timers.target.wants" / "fstrim.timer").symlink_to("/lib/systemd/system/fstrim.timer")
    monkeypatch.setattr(packages, "ENABLED", units)
    monkeypatch.setattr(packages, "_POLICY", tmp_path / "policy-rc.d")
    return units


def install(units: Path) -> int:
    return subprocess.run([*packages._without_services(), "sh", "-c", APT], cwd=units, check=False).returncode


def links(units: Path) -> list[str]:
    return [path.name for path in units.rglob("*") if path.is_symlink()]


def test_services_enabled_by_packages_are_disabled_and_others_stay(enabled: Path) -> None:
    assert install(enabled) == 3
    assert links(enabled) == ["fstrim.timer"]
    assert not (enabled.parent / "policy-rc.d").exists()


def test_services_are_disabled_where_a_policy_exists_already(enabled: Path) -> None:
    (enabled.parent / "policy-rc.d").write_text("exit 101\n")
    assert install(enabled) == 3
    assert links(enabled) == ["fstrim.timer"]
    assert (enabled.parent / "policy-rc.d").read_text() == "exit 101\n"


def test_services_are_disabled_on_a_machine_that_had_none(enabled: Path) -> None:
    (enabled / "timers.target.wants" / "fstrim.timer").unlink()
    install(enabled)
    assert links(enabled) == []


CONTAINERD_2 = "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7193e4e490e9fbdc236c0e811ccaba3376\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("containerd", "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3\n"),
        ("containerd", "containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da\n"),
        ("go", "go version go1.19.8 linux/amd64\n"),
        ("go", "go version devel linux/amd64\n"),
    ],
)
def test_a_suitable_program_is_taken(command: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "run", lambda _: said)
    packages.check_suits(command, SUITABLE[command])


@pytest.mark.parametrize(
    ("command", "said", "version", "why"),
    [
        ("containerd", CONTAINERD_2, "2.1", "speaks with containerd 1.3 to 1.7"),
        ("go", "go version go1.11.6 linux/amd64\n", "1.11", "is built with Go 1.15 or newer"),
    ],
)
def test_an_unsuitable_program_is_reported_before_anything_is_installed(
    command: str, said: str, version: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "run", lambda _: said)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/local/bin/{name}" if name == command else None)
    with pytest.raises(ClusterError, match=rf"^/usr/local/bin/{command} is version {version}, and .*{why}.*on PATH$"):
        packages.provide({"absent": "absent", command: command})
