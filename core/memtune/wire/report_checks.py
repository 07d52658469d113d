"""Checks of report fields. Each check returns the value to keep, or raises ReportError."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from enum import Enum
from typing import Any

from memtune.words import shortened

LARGEST_COUNT = 2**60
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class ReportError(ValueError):
    """The text is not a report."""


def count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_COUNT:  # True is an int, too
        raise ReportError(f"{shown(value)} is not a whole number from 0 to 2^60")
    return value


def exit_code(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 255:
        raise ReportError(f"{shown(value)} is not an exit code; those go from 0 to 255")
    return value


def rate(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= LARGEST_COUNT:  # NaN passes no comparison
        raise ReportError(f"{shown(value)} is not a number from 0 to 2^60")
    return float(value)


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ReportError(f"{shown(value)} is neither true nor false")
    return value


def word(longest: int) -> Callable[[Any], str]:
    """A name that MemTune itself assigns: plain ASCII, so that it needs no escapes."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(rf"[\w.+-]{{1,{longest}}}", value, re.ASCII):
            raise ReportError(f"{shown(value)} is not a word of at most {longest} letters, digits and .+-")
        return value

    return read


def text(longest: int, keep_end: bool = False) -> Callable[[Any], str]:
    """Any text, sanitized and shortened, since the failed program may say anything."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ReportError(f"{shown(value)} is not a text")
        return clean(value[-longest:] if keep_end else shortened(value, longest))

    return read


def choice(kind: type[Enum]) -> Callable[[Any], Any]:
    def read(value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError:
            allowed = ", ".join(each.value for each in kind)
            raise ReportError(f"{shown(value)} is not one of {allowed}") from None

    return read


def clean(value: str) -> str:
    """Remove control characters (except newlines and tabs) and lone surrogates, which cannot be encoded."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else _REPLACEMENT for c in value)


def shown(value: Any) -> str:
    """The start of an invalid value, for a message."""
    if isinstance(value, str):
        return ascii(value[:40])
    # An integer may be arbitrarily long, and Python refuses to print the longest.
    printable = isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) <= 2 * LARGEST_COUNT)
    return repr(value) if printable else f"a value of type {type(value).__name__}"
