"""Converts field names to camelCase, for objects, plans and reports: ``micro_batch`` is ``microBatch``."""

from __future__ import annotations

from functools import cache


@cache
def camel(name: str) -> str:
    """The name of a field in JSON and YAML."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
