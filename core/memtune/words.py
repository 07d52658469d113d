"""Names as people write them: camelCase fields of objects, plans and reports, enumerations of words, short texts."""

from __future__ import annotations

from enum import Enum
from functools import cache


class Word(str, Enum):
    """An enumeration whose members are written as their values."""

    __str__ = str.__str__


@cache
def camel(name: str) -> str:
    """The name of a field in JSON and YAML."""
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def shortened(text: str, longest: int) -> str:
    """The text; dots replace its last words if it is too long."""
    if len(text) <= longest:
        return text
    room = max(longest - 3, 0)
    words = text[: room + 1].rpartition(" ")[0]
    # A path or another long word is cut within.
    return f"{words if 2 * len(words) > room else text[:room]}..."[:longest]
