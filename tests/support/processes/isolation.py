"""Isolates unit and contract tests: they use only their own temporary directory.

While tests run, HOME is a directory of theirs and variables that name a cluster are unset, for child processes as well.
In the test process, an audit hook forbids writing elsewhere, network access beyond loopback, and reading a devcluster's
files, whether one is up or not: such a test would pass on one machine and fail on another.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from dev.cluster.layout import CHECKOUT, COMMAND_LOCK, STATE, VOLUMES

# The last one is set by inductor itself as it is imported, which may have been before the first test.
VARIABLES = ("KUBECONFIG", "MEMTUNE_KUBECONFIG", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
             "TORCHINDUCTOR_CACHE_DIR")  # fmt: skip
_CLUSTERS_OWN = tuple(map(str, (STATE, COMMAND_LOCK, VOLUMES)))
# Files of pytest, hypothesis and the import system in the checkout, and devices.
_ALWAYS = (*(str(CHECKOUT / name) for name in (".hypothesis", ".pytest_cache", "build")), "/dev", "/proc/self")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Audit events that change files, with the positions of their path arguments.
_CHANGES = {
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.link": (1,),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
}

# Where tests may write while they are isolated; None otherwise.
_own: tuple[str, ...] | None = None
breaches: list[str] = []


class BreachError(AssertionError):
    """A test accessed something that is not its own."""


@contextmanager
def kept_apart(directory: Path) -> Iterator[None]:
    """Restrict this process and its children to this directory."""
    global _own
    home = directory / "home"
    home.mkdir(exist_ok=True)  # unit and contract tests in one run share the directory
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(home))
        patch.setenv("TMPDIR", str(directory))
        patch.setattr(tempfile, "tempdir", None)
        for name in ("stat", "lstat", "access"):
            patch.setattr(os, name, _looking(getattr(os, name)))
        before = _own
        rewritten = (str(CHECKOUT / "tests" / "golden"),) if os.environ.get("MEMTUNE_WRITE_GOLDEN") else ()
        _own = (str(directory.resolve()), *_ALWAYS, *rewritten)
        _install_hook()
        try:
            yield
        finally:
            _own = before


def _install_hook() -> None:
    """Once, since a hook stays as long as the process."""
    if not _installed:
        sys.addaudithook(_audit)
        _installed.append(True)


_installed: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _own is None:
        return
    if event == "open":
        path, _, flags = arguments
        _check_looked_at(path)
        if flags & _WRITES:
            _check_written(path, event)
    elif event in _CHANGES:
        # The last argument is a directory's descriptor, or -1: that directory was opened by its own path.
        is_relative = event != "os.truncate" and isinstance(arguments[-1], int) and arguments[-1] >= 0
        for place in () if is_relative else _CHANGES[event]:
            _check_written(arguments[place], event)
    elif event in ("socket.connect", "socket.bind"):
        _check_address(arguments[1], event)


def _check_written(path: object, event: str) -> None:
    name = _absolute(path)
    if name is not None and "__pycache__" not in name and not _is_below(name, _own or ()):
        _refuse(f"{event} of {name}: tests write to their temporary directory alone")


def _check_looked_at(path: object) -> None:
    name = _absolute(path)
    if name is not None and _is_below(name, _CLUSTERS_OWN):
        _refuse(
            f"{name} is read: it is that of a devcluster on this machine, and the test depends on whether one is up"
        )


def _check_address(address: object, event: str) -> None:
    # A Unix socket's address is a path.
    if isinstance(address, tuple) and address[0] not in ("", "localhost") and not _is_loopback(str(address[0])):
        _refuse(f"{event} of {address}: tests use no network but loopback")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _looking(look: Callable[..., Any]) -> Callable[..., Any]:
    """Checks for a file's existence have no audit event, so wrap them."""

    def guarded(path: Any, *more: Any, **named: Any) -> Any:
        if _own is not None:
            _check_looked_at(path)
        return look(path, *more, **named)

    return guarded


def _absolute(path: object) -> str | None:
    """The absolute path; None for a descriptor."""
    # Not Path.resolve(), which reads the disk: this is called for every file.
    return os.path.abspath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else None  # noqa: PTH100


def _is_below(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def _refuse(sentence: str) -> None:
    breaches.append(sentence)
    raise BreachError(sentence)


@pytest.fixture(autouse=True, scope="module")
def _kept_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Isolate each module, since a worker may also run tests that are not; tmp_path is below the same directory."""
    with kept_apart(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(autouse=True)
def _no_breach() -> Iterator[None]:
    """A breach fails its test even if the code under test handles it as an error."""
    yield
    found = breaches.copy()
    breaches.clear()
    assert found == []
