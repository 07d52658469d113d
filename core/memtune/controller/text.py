"""Texts as the status takes them: one line of ASCII, cut to a length. What failed may say whatever it likes."""

from __future__ import annotations

from memtune.units import unit_of

SENTENCE = 288
EXPLANATION = 512
STORY = 768


def line(text: str, longest: int, keep_end: bool = False) -> str:
    """The text on one line, everything but ASCII escaped, its middle or beginning cut away if it is too long."""
    part = text[-longest:] if keep_end else text[: 2 * longest]
    plain = " ".join(part.split()).encode("ascii", "backslashreplace").decode()
    plain = "".join(character if " " <= character <= "~" else "?" for character in plain)
    if len(plain) <= longest:
        return plain
    return f"...{plain[3 - longest :]}" if keep_end else f"{plain[: longest - 3]}..."


def sentence(text: str) -> str:
    """As long as the message of a run may be."""
    return line(text, SENTENCE)


def explanation(text: str) -> str:
    """As long as the message of a trace run may be."""
    return line(text, EXPLANATION)


def story(text: str) -> str:
    """As long as the message of a job or of a condition may be."""
    return line(text, STORY)


def span(seconds: float) -> str:
    """A duration as a person says it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def over(used_bytes: float, usable_bytes: float) -> str:
    """Memory over what there is, as the printer column shows it."""
    unit = unit_of(usable_bytes)
    # Whoever reads the column with a program reads it without separators.
    return f"{unit.number(used_bytes)}/{unit.number(usable_bytes)}{unit.name}".replace(",", "")
