"""Tells the user's code apart from libraries and from the runner."""

from __future__ import annotations

import sysconfig
from pathlib import Path

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_PACKAGES = ("/site-packages/", "/dist-packages/")
_OURS = str(Path(__file__).parent.parent)


def is_user_file(file: str) -> bool:
    """Whether a file in a traceback belongs to the user."""
    return not file.startswith((*_LIBRARIES, _OURS, "<"))


def is_library_file(file: str) -> bool:
    """Whether a file belongs to Python, or to a package that is installed for this or another Python."""
    return file.startswith(_LIBRARIES) or any(part in file for part in _PACKAGES)
