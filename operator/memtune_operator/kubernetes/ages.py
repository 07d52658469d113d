"""How old an answer may be before it is asked for again."""

from __future__ import annotations


def is_fresh(at: float, now: float, seconds: float) -> bool:
    """Whether what was asked at ``at`` need not be asked again: after a clock that went back nobody knows its age."""
    return 0 <= now - at < seconds
