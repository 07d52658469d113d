"""When tests of several workers may use the cluster that they share: the marks alone and replaces_the_cluster."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from pathlib import Path

import pytest

_HERE = Path(__file__)
# Open as long as a worker may still run a test on the cluster that it knows.
_AT_WORK = pytest.StashKey[int]()


def begin(config: pytest.Config) -> None:
    at_work = config.stash[_AT_WORK] = os.open(_HERE, os.O_RDONLY)
    fcntl.flock(at_work, fcntl.LOCK_SH)


def end(config: pytest.Config) -> None:
    if _AT_WORK in config.stash:
        os.close(config.stash[_AT_WORK])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait while a test of another worker is alone; one that is itself alone waits for all others to end.

    One that replaces the cluster waits for all other workers to end: they keep connections to the old one.
    """
    if item.get_closest_marker("replaces_the_cluster"):
        fcntl.flock(item.config.stash[_AT_WORK], fcntl.LOCK_EX)
    turn = os.open(_HERE.parent, os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
    try:
        return (yield)
    finally:
        os.close(turn)
