"""Formats and parses memory sizes, counts and durations: bytes inside, GiB only in output."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_SUFFIXES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": KIB,
    "Mi": MIB,
    "Gi": GIB,
    "Ti": 1024**4,
}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([kMGT]i?|Ki)?")


def parse_bytes(text: str | int) -> int:
    """Parse a Kubernetes memory quantity, such as ``80Gi`` or ``512M`` or a plain number of bytes."""
    match = _QUANTITY.fullmatch(str(text).strip())
    factor = _SUFFIXES.get(match[2] or "") if match else None
    # A number with enough digits exceeds a float.
    size = float(match[1]) * factor if match and factor else math.inf
    if math.isinf(size):
        raise ValueError(f"{text!r} is not a quantity of memory; write it like 80Gi, 512Mi or 16G")
    return int(size)


def gib(size_bytes: float, digits: int = 1) -> str:
    """Show bytes as GiB, the unit in which GPUs are sold."""
    return f"{size_bytes / GIB:,.{digits}f} GiB"


class Unit(NamedTuple):
    """A unit of memory, and the digits to show."""

    name: str
    size_bytes: int
    digits: int

    def number(self, size_bytes: float, more_digits: int = 0) -> str:
        """Bytes in this unit, without its name."""
        return f"{size_bytes / self.size_bytes:,.{self.digits + more_digits}f}"

    @property
    def least_bytes(self) -> float:
        """Smaller amounts would be shown as 0."""
        return self.size_bytes * float(10**-self.digits) / 2


def unit_of(size_bytes: float) -> Unit:
    """The best unit to show a memory and its parts."""
    return Unit("Gi", GIB, 1) if size_bytes >= GIB else Unit("Mi", MIB, 0)


def amount(size_bytes: float, of_bytes: float) -> str:
    """An amount in the unit of the whole, for a sentence: ``71.2 GiB``, ``166 MiB``."""
    unit = unit_of(of_bytes)
    return f"{unit.number(size_bytes)} {unit.name}B"


def counted(number: int, thing: str) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def span(seconds: float) -> str:
    """A duration for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def over(used_bytes: float, usable_bytes: float) -> str:
    """Used over usable memory, for the printer column."""
    unit = unit_of(usable_bytes)
    # Without thousands separators, so that programs can parse the column.
    return f"{unit.number(used_bytes)}/{unit.number(usable_bytes)}{unit.name}".replace(",", "")
