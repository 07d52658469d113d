"""Callbacks after imports, of one watch and of two in the same process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memtune_runner.rank.imports import ImportWatch

_MODULE = "imported_under_watch"


@pytest.fixture
def watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ImportWatch]]:
    (tmp_path / f"{_MODULE}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = [ImportWatch(), ImportWatch()]
    yield found
    for each in found:
        each.remove()
    sys.modules.pop(_MODULE, None)


def test_two_watches_both_see_a_module_in_the_order_of_installation(watches: list[ImportWatch]) -> None:
    told = []
    for number, watch in enumerate(watches):
        watch.when_imported(_MODULE, lambda module, number=number: told.append((number, module.value)))  # type: ignore[misc]
        watch.install()
    importlib.import_module(_MODULE)
    assert told == [(0, 1), (1, 1)]


def test_a_removed_watch_sees_no_module(watches: list[ImportWatch]) -> None:
    told: list[object] = []
    watch, _ = watches
    watch.when_imported(_MODULE, told.append)
    watch.install()
    watch.remove()
    importlib.import_module(_MODULE)
    assert told == []
