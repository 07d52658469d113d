"""Whether anything in the volumes that a pod mounts had a part in what a process did.

A template says which volumes there are, and not what is in them: that may be other files for the next job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# What Python tells its audit hooks before it opens a file. That of a module is one of them.
_OPENING = frozenset({"open", "ctypes.dlopen"})


class Volumes:
    """The places where volumes are mounted, separated by colons."""

    def __init__(self, places: str) -> None:
        self._places = frozenset(form for place in places.split(":") if place for form in _forms(place))
        self._is_opened = False

    def watch(self) -> None:
        """From now on see what is opened. There is no end of it, for a hook stays as long as its process."""
        if self._places:
            sys.addaudithook(self._see)

    def had_part(self) -> bool:
        """Whether a file in one of them was opened, or a module comes from there that was imported before."""
        return self._is_opened or any(map(self._holds, _modules()))

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _OPENING and not self._is_opened and isinstance(arguments[0], (str, bytes, os.PathLike)):
            self._is_opened = self._holds(os.fsdecode(arguments[0]))

    def _holds(self, path: str) -> bool:
        return any(form == place or form.startswith(f"{place}/") for form in _forms(path) for place in self._places)


def _forms(path: str) -> set[str]:
    """A path as it is written and as it is without links: either may lead into a volume."""
    return {str(Path(path).absolute()), os.path.realpath(path)}


def _modules() -> Iterator[str]:
    """The files of all modules. Attributes are read where nobody can make them up: some modules import as they do."""
    for module in list(sys.modules.values()):
        known = getattr(module, "__dict__", {})
        spec = known.get("__spec__")
        for file in (known.get("__file__"), getattr(spec, "origin", None)):
            # Of what is no file, such as torch.ops and modules of Python itself, it is a bare word.
            if isinstance(file, str) and file.startswith("/"):
                yield file
