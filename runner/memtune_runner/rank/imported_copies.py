"""Functions that libraries copied from one another (`from library import function`) before the hooks were installed.

A fork has imported libraries before its hooks come. A function that the hooks replace in a module is then replaced in
the modules that were imported after it, too, as if they copied it only now.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from memtune_runner.rank.imports import called_late


class Copy(NamedTuple):
    """A module, its place in the order of imports, and its name for what it copied."""

    place: int
    module: ModuleType
    name: str


_places: dict[str, int] = {}
# By the id of what was copied, together with it, so that no other object gets this id.
_copies: dict[int, tuple[Any, list[Copy]]] = {}


def find(imported: Sequence[str]) -> None:
    """Find the copies in these modules, which are in the order in which their imports ended, behind those before."""
    for place, name in enumerate(imported, start=len(_places)):
        _places[name] = place
        module = sys.modules[name]
        for own, value in list(vars(module).items()):
            if isinstance(value, (FunctionType, BuiltinFunctionType, type)) and value.__module__ != name:
                _add(value, [Copy(place, module, own)])


def of(value: Any, replacement: Any) -> list[Copy]:
    """Return the copies of a value that a callback replaces now, in modules imported after the callback's."""
    if not called_late or called_late[-1] not in _places or id(value) not in _copies:
        return []
    first = _places[called_late[-1]]
    found = [each for each in _copies[id(value)][1] if each.place > first]
    _add(replacement, found)
    return found


def _add(value: Any, copies: list[Copy]) -> None:
    _copies.setdefault(id(value), (value, []))[1].extend(copies)
