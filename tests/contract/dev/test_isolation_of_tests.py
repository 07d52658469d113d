"""Unit and contract tests are confined to their temporary directory: each escape is refused and fails the test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import isolation
import pytest

from dev.cluster.layout import MONITORING_LOCK, STATE

ELSEWHERE = Path("/tmp/memtune-no-test-writes-here")


def connect(address: tuple[str, int]) -> None:
    with socket.socket() as made:
        made.connect(address)


def bind(address: tuple[str, int]) -> None:
    with socket.socket() as made:
        made.bind(address)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (ELSEWHERE.touch, f"os.utime of {ELSEWHERE}"),
        (lambda: ELSEWHERE.write_text(""), f"open of {ELSEWHERE}"),
        (lambda: Path("mere-name").write_text(""), "open of "),
        (ELSEWHERE.mkdir, f"os.mkdir of {ELSEWHERE}"),
        (ELSEWHERE.unlink, f"os.remove of {ELSEWHERE}"),
        (lambda: ELSEWHERE.symlink_to("/etc/passwd"), f"os.symlink of {ELSEWHERE}"),
        (lambda: shutil.rmtree(ELSEWHERE), f"shutil.rmtree of {ELSEWHERE}"),
        (lambda: connect(("192.0.2.1", 6443)), "socket.connect of ('192.0.2.1', 6443)"),
        (lambda: bind(("0.0.0.0", 0)), "socket.bind of ('0.0.0.0', 0)"),
        (STATE.exists, f"{STATE} is read"),
        (STATE.is_symlink, f"{STATE} is read"),
        (lambda: os.lstat(STATE), f"{STATE} is read"),
        (lambda: os.path.lexists(STATE), f"{STATE} is read"),
        (lambda: os.access(STATE, os.R_OK), f"{STATE} is read"),
        (MONITORING_LOCK.read_text, f"{MONITORING_LOCK} is read"),
    ],
)
def test_access_outside_a_tests_own_directory_is_refused(act: Callable[[], object], said: str) -> None:
    with pytest.raises(isolation.BreachError) as refused:
        act()
    assert str(refused.value).startswith(said)
    assert isolation.breaches == [str(refused.value)]
    isolation.breaches.clear()
    assert not ELSEWHERE.exists()


def test_a_rename_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(isolation.BreachError, match=f"os.rename of {ELSEWHERE}"):
        (tmp_path / "file").rename(ELSEWHERE)
    isolation.breaches.clear()


def test_a_tests_own_directory_and_loopback_are_free(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("/etc/passwd")
    shutil.rmtree(tmp_path / "folder")
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect(server.getsockname())
    assert isolation.breaches == []


def test_home_is_the_tests_own_for_children_as_well(tmp_path_factory: pytest.TempPathFactory) -> None:
    asked = (
        "import os, pathlib, tempfile; print(pathlib.Path.home(), tempfile.gettempdir(), os.environ.get('KUBECONFIG'))"
    )
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    own = tmp_path_factory.getbasetemp()
    assert said == [str(own / "home"), str(own), "None"]


@pytest.mark.parametrize("name", isolation.VARIABLES)
def test_variables_that_lead_elsewhere_are_gone(name: str) -> None:
    assert name not in os.environ
