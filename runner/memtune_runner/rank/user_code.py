"""Tells the user's code apart from libraries and from the runner."""

from __future__ import annotations

import sysconfig
from pathlib import Path

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_OURS = str(Path(__file__).parent.parent)


def is_user_file(file: str) -> bool:
    """Whether a file in a traceback belongs to the user."""
    return not file.startswith((*_LIBRARIES, _OURS, "<"))
