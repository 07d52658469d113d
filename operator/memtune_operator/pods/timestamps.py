"""Timestamps of the API server, in seconds since the epoch."""

from __future__ import annotations

from datetime import datetime
from typing import Any


def seconds_of(time: str) -> float:
    """Convert an API server timestamp to seconds since the epoch."""
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def seconds_if_any(value: Any) -> float | None:
    """Convert the value of a field that may be missing; None if it is."""
    return seconds_of(value) if isinstance(value, str) else None
