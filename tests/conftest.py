"""How pytest-xdist deals out the tests of several directories."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer  # type: ignore[import-untyped]  # it has no types
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # the same

# Their tests share what a fixture of their module has made; those of other directories share nothing that takes time.
_FILE_BY_FILE = ("tests/contract/", "tests/scripts/")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: each worker imports thousands of modules, which leave none worth looking for."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # hypothesis has its own, which scans
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that are marked as long begin before the others; otherwise the order stays."""
    # Hypothesis would scan all modules for constants to draw, which takes seconds in each worker and changes the
    # examples after every edit. On a GPU day it is not there.
    if providers := sys.modules.get("hypothesis.internal.conjecture.providers"):
        providers._get_local_constants = lambda: providers._local_constants  # type: ignore[attr-defined]  # of a module
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Under `--dist loadscope`, keep a file's tests on one worker where they share fixtures."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class FilesOrTests(LoadScopeScheduling):  # type: ignore[misc]  # a class without types
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0] if nodeid.startswith(_FILE_BY_FILE) else nodeid

    return FilesOrTests(config, log)
