"""Tells from the caller's frame who queries a prepared loader's length or truth value."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

Place = tuple[int, CodeType, int]


def place_in(frame: FrameType) -> Place:
    """Return a function call and its current instruction."""
    return id(frame), frame.f_code, frame.f_lasti


def is_of_accelerate(frame: FrameType) -> bool:
    """Whether accelerate's own code queries."""
    return str(frame.f_globals.get("__name__", "")).startswith("accelerate.")


def is_progress_bar(frame: FrameType) -> bool:
    """Whether tqdm queries: it counts the batches that the loop gets, unlike the script through ``len`` of its bar."""
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith("tqdm.") and frame.f_code.co_name == "__init__"


def truth_of(length: Callable[..., Any]) -> Callable[[Any], bool]:
    """Return a loader's original ``bool``: the existence of batches says nothing about how many make a step."""

    def truth(loader: Any) -> bool:
        return int(length(loader)) > 0

    return truth
