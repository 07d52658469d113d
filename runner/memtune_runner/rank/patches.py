"""Replaces functions of other libraries by wrappers, and puts everything back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from memtune_runner.rank import imported_copies

Wrapper = Callable[..., Any]


class Patches:
    """The replaced functions, restored in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Let ``owner.name(...)`` call ``wrapper(inherited, ...)``. A name that the owner does not have is skipped."""
        inherited = getattr(owner, name, None)
        if inherited is None:
            return

        @functools.wraps(inherited)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(inherited, *args, **kwargs)

        self.replace(owner, name, wrapped)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until everything is undone, and its copies in modules that were imported early."""
        for copy in imported_copies.of(getattr(owner, name, None), value):
            self._replace(copy.module, copy.name, value)
        self._replace(owner, name, value)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        own = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self.when_undone(lambda: delattr(owner, name) if own is _ABSENT else setattr(owner, name, own))

    def when_undone(self, action: Callable[[], None]) -> None:
        """Do something else when everything is undone, such as removing a hook."""
        self._undo.append(action)

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._undo:
            self._undo.pop()()


_ABSENT = object()
