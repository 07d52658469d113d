"""Import hooks: run callbacks right after a module's first import, without importing anything.

A script without torch must not pay for its import, and a library's functions must be wrapped before ``from library
import function`` copies them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

Callback = Callable[[ModuleType], None]
# The modules, the innermost last, whose callbacks run now although others were imported after them.
called_late: list[str] = []


class ImportWatch(MetaPathFinder):
    """A meta path finder that leaves finding to the others and calls back after an expected module was executed."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._checks: dict[str, Callable[[], None]] = {}
        self._always: list[Callback] = []

    def when_imported(self, name: str, callback: Callback) -> None:
        """Call back with the module after its import, or at once if it is already imported."""
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            called_late.append(name)
            try:
                callback(module)
            finally:
                called_late.pop()
        else:
            self._callbacks.setdefault(name, []).append(callback)

    def when_any_is_imported(self, callback: Callback) -> None:
        """Call back with each module of Python code after its import."""
        self._always.append(callback)

    def before_imported(self, name: str, check: Callable[[], None]) -> None:
        """Call a check before the module is executed; its exception becomes the import's."""
        self._checks[name] = check

    def install(self) -> None:
        """Become the first finder on ``sys.meta_path``."""
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Leave ``sys.meta_path``; later imports go unnoticed."""
        self._callbacks.clear()
        self._checks.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the next finder's spec for an expected module, wrapped to call back after execution."""
        is_expected = fullname in self._callbacks or fullname in self._checks
        if not is_expected and not self._always:
            return None
        # Those behind it: another watch in front has asked this one, and would ask it again.
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else sys.meta_path
        found = (each.find_spec(fullname, path, target) for each in behind if hasattr(each, "find_spec"))
        spec = next((each for each in found if each is not None), None)
        # A loader that serves several modules would keep the callbacks.
        if spec is not None and (is_expected or isinstance(spec.loader, SourceFileLoader)) and spec.loader is not None:
            self._call_back_after(spec, fullname)
        return spec

    def _call_back_after(self, spec: ModuleSpec, name: str) -> None:
        loader = spec.loader
        assert loader is not None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if name in self._checks:
                self._checks[name]()
            execute(module)
            for callback in (*self._always, *self._callbacks.pop(name, ())):
                callback(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one spec; the class stays as it is
