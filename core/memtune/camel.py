"""How objects, plans and reports write the names of fields: ``micro_batch`` is ``microBatch``."""

from __future__ import annotations

from functools import cache


@cache
def camel(name: str) -> str:
    """The name of a field as JSON and YAML have it."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
