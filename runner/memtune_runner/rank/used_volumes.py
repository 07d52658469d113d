"""Detects whether a process used files from the volumes that its pod mounts.

A pod template names its volumes but not their content, which may differ for the next job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Audit events before Python opens a file; importing a module raises one of them.
_OPENING = frozenset({"open", "ctypes.dlopen"})


class UsedVolumes:
    """The mount points of the volumes, separated by colons."""

    def __init__(self, places: str) -> None:
        self._places = frozenset(form for place in places.split(":") if place for form in _forms(place))
        self._is_opened = False

    def watch(self) -> None:
        """Start recording opened files. It cannot be stopped: an audit hook lasts as long as its process."""
        if self._places:
            sys.addaudithook(self._see)

    def had_part(self) -> bool:
        """Whether a file in a volume was opened, or a module imported before comes from one."""
        return self._is_opened or any(map(self._holds, _modules()))

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _OPENING and not self._is_opened and isinstance(arguments[0], (str, bytes, os.PathLike)):
            self._is_opened = self._holds(os.fsdecode(arguments[0]))

    def _holds(self, path: str) -> bool:
        return any(form == place or form.startswith(f"{place}/") for form in _forms(path) for place in self._places)


def _forms(path: str) -> set[str]:
    """Return a path as written and with its links resolved: either may lead into a volume."""
    return {str(Path(path).absolute()), os.path.realpath(path)}


def _modules() -> Iterator[str]:
    """Yield the files of all modules. Bypasses module __getattr__, which may import more modules."""
    for module in list(sys.modules.values()):
        known = getattr(module, "__dict__", {})
        spec = known.get("__spec__")
        for file in (known.get("__file__"), getattr(spec, "origin", None)):
            # Built-in modules and objects such as torch.ops have a bare word instead of a path.
            if isinstance(file, str) and file.startswith("/"):
                yield file
