"""Formats texts, durations, memory and times for the status. Reads no clock."""

from __future__ import annotations

from datetime import datetime, timezone

from memtune.units import unit_of

SENTENCE = 288
EXPLANATION = 512
STORY = 768


def line(text: str, longest: int, keep_end: bool = False) -> str:
    """The text on one line, non-ASCII escaped, cut in the middle or at the beginning if too long."""
    part = text[-longest:] if keep_end else text[: 2 * longest]
    plain = " ".join(part.split()).encode("ascii", "backslashreplace").decode()
    plain = "".join(character if " " <= character <= "~" else "?" for character in plain)
    if len(plain) <= longest:
        return plain
    return f"...{plain[3 - longest :]}" if keep_end else f"{plain[: longest - 3]}..."


def sentence(text: str) -> str:
    """Cut to the length of a run's message."""
    return line(text, SENTENCE)


def explanation(text: str) -> str:
    """Cut to the length of a trace run's message."""
    return line(text, EXPLANATION)


def story(text: str) -> str:
    """Cut to the length of a job's or condition's message."""
    return line(text, STORY)


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


# The last second that RFC 3339 can express.
_LATEST = 253_402_300_799


def to_text(seconds: float) -> str:
    """RFC 3339 in whole seconds, as metav1.Time."""
    bounded = int(min(max(seconds, 0.0), _LATEST)) if seconds == seconds else 0
    return datetime.fromtimestamp(bounded, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_seconds(text: str | None) -> float | None:
    """Seconds since the epoch; None if the text is not a time."""
    try:
        read = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
        return (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None
