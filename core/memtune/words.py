"""Names as people write them: camelCase fields of objects, plans and reports, and enumerations of words."""

from __future__ import annotations

from enum import Enum


class Word(str, Enum):
    """An enumeration whose members are written as their values."""

    __str__ = str.__str__


def camel(name: str) -> str:
    """The name of a field in JSON and YAML."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
