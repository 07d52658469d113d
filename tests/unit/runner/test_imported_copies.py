"""Hooks that come after the imports replace what libraries have copied meanwhile, as if they had come before."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from memtune_runner.rank import imported_copies
from memtune_runner.rank.imports import ImportWatch
from memtune_runner.rank.patches import Patches

NAMES = ("copied_before", "copied_from", "copied_after")


def plain() -> str:
    return "plain"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    """One that copied a function before its module was ready, that module, and one that came later."""
    monkeypatch.setattr(imported_copies, "_places", {})
    monkeypatch.setattr(imported_copies, "_copies", {})
    made = [ModuleType(name) for name in NAMES]
    for each in made:
        vars(each)["function"] = plain
        monkeypatch.setitem(sys.modules, each.__name__, each)
    imported_copies.find(NAMES)
    return made


def said(modules: list[ModuleType]) -> list[str]:
    return [each.function() for each in modules]


def test_copies_made_later_are_replaced_as_often_as_the_function_is(modules: list[ModuleType]) -> None:
    patches, imports = Patches(), ImportWatch()
    for _ in range(2):
        imports.when_imported(
            "copied_from", lambda module: patches.wrap(module, "function", lambda inherited: f"{inherited()} hooked")
        )
    assert said(modules) == ["plain", "plain hooked hooked", "plain hooked hooked"]
    patches.undo()
    assert said(modules) == ["plain"] * 3


def test_nothing_is_replaced_in_others_outside_of_a_callback_of_an_import(modules: list[ModuleType]) -> None:
    Patches().replace(modules[1], "function", lambda: "replaced")
    assert said(modules) == ["plain", "replaced", "plain"]
