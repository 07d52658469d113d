"""What is asked of a prepared loader beside its batches, and by whom, as the caller's frame tells."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

Place = tuple[int, CodeType, int]


def place_in(frame: FrameType) -> Place:
    """The call of a function, and the instruction where it stands."""
    return id(frame), frame.f_code, frame.f_lasti


def is_of_accelerate(frame: FrameType) -> bool:
    """Whether accelerate's own code asks."""
    return str(frame.f_globals.get("__name__", "")).startswith("accelerate.")


def is_progress_bar(frame: FrameType) -> bool:
    """Whether tqdm asks, which counts what the loop is given, and not the script through ``len`` of its bar."""
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith("tqdm.") and frame.f_code.co_name == "__init__"


def truth_of(length: Callable[..., Any]) -> Callable[[Any], bool]:
    """A loader's ``bool``, as without it: that there are batches says nothing of how many make a step."""

    def truth(loader: Any) -> bool:
        return int(length(loader)) > 0

    return truth
