"""Which files somebody has to open to follow a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any


def entered(call: Callable[[], Any], *packages: Any) -> set[str]:
    """The files of these packages whose functions are called; what imports run does not count."""
    roots = [Path(package.__file__).parent for package in packages]
    found = set[str]()
    importing = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal importing
        if frame.f_code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        path = Path(frame.f_code.co_filename)
        if event == "call" and not importing and frame.f_code.co_flags & CO_OPTIMIZED:
            found.update(str(path.relative_to(root.parent)) for root in roots if path.is_relative_to(root))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found
