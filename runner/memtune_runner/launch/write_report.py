"""Writes the report of a node: shortened to the termination message, whole to a file and to one marked log line."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from memtune.wire.report import LOG_MARK, TERMINATION_MESSAGE_BYTES, Report
from memtune.words import shortened
from memtune_runner.rank.ranks import whole


def termination_message(report: Report) -> str:
    """Shorten the report to what Kubernetes keeps of it: all numbers, and texts and lists as far as they fit."""
    short = replace(report, message="", largest=(), measured_steps=(), log_tail="")
    room = TERMINATION_MESSAGE_BYTES - len(whole(short))
    # A long message may take half of the room; the components and the log tail get the rest.
    short = _longest(short, report, "message", len(whole(short)) + room // 2)
    short = _longest(short, report, "largest", TERMINATION_MESSAGE_BYTES)
    short = _longest(short, report, "measured_steps", TERMINATION_MESSAGE_BYTES)
    return whole(_longest(short, report, "log_tail", TERMINATION_MESSAGE_BYTES))


def write(report: Report, termination_log: Path, path: Path | None, stream: TextIO) -> None:
    """Write the report to all its places; a place that fails does not affect the others."""
    try:
        print(f"{LOG_MARK}{whole(report)}", file=stream, flush=True)
    except OSError as error:
        _complain("the log", error)
    _write_file(termination_log, termination_message(report))
    if path is not None:
        _write_file(path, whole(report) + "\n")


def _write_file(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="ascii")
    except OSError as error:
        _complain(path, error)


def _complain(place: object, error: OSError) -> None:
    with suppress(OSError):  # stderr may be closed, too
        print(f"memtune: the report cannot be written to {place}: {error.strerror}", file=sys.stderr)


def _longest(short: Report, report: Report, name: str, limit_bytes: int) -> Report:
    """Return ``short`` with as much of one of the report's fields as the limit allows."""
    fits, too_long = 0, len(getattr(report, name)) + 1
    while too_long - fits > 1:
        length = (fits + too_long) // 2
        if len(whole(_with_part(short, report, name, length))) <= limit_bytes:
            fits = length
        else:
            too_long = length
    return _with_part(short, report, name, fits)


def _with_part(short: Report, report: Report, name: str, length: int) -> Report:
    value = getattr(report, name)
    # A log names the cause of a failure at its end; other fields start with it.
    part: dict[str, Any] = {name: value[:length]}
    if name == "log_tail":
        part = {name: value[len(value) - length :]}
    elif name == "message":
        part = {name: shortened(value, length)}
    return replace(short, **part)
