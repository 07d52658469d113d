"""Writes the report: short in the termination message, whole in a file and as one marked line of the log."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from memtune.wire.report import LOG_MARK, LOG_TAIL_BYTES, TERMINATION_MESSAGE_BYTES, Report

_LOG_TAIL_LINES = 20


def whole(report: Report) -> str:
    """The complete report, as one line of ASCII."""
    return json.dumps(report.to_json(), allow_nan=False, separators=(",", ":"))


def termination_message(report: Report) -> str:
    """The report within what Kubernetes keeps of a container: numbers entirely, texts and lists as far as they fit."""
    short = replace(report, message="", largest=(), measured_steps=(), log_tail="")
    room = TERMINATION_MESSAGE_BYTES - len(whole(short))
    # A long message may take half of the room; the rest is for the components and for the end of the log.
    short = _longest(short, report, "message", len(whole(short)) + room // 2)
    short = _longest(short, report, "largest", TERMINATION_MESSAGE_BYTES)
    short = _longest(short, report, "measured_steps", TERMINATION_MESSAGE_BYTES)
    return whole(_longest(short, report, "log_tail", TERMINATION_MESSAGE_BYTES))


def log_tail(log: str) -> str:
    """The last lines of a rank's log, at most as many as a report may carry."""
    text = "\n".join(log.splitlines()[-_LOG_TAIL_LINES:]).encode("utf-8", "replace")
    tail = text[-LOG_TAIL_BYTES:]
    # Of a line that is cut the rest is kept only if it is all that there is.
    is_cut = len(text) > len(tail) and text[-len(tail) - 1 :][:1] != b"\n"
    if is_cut and b"\n" in tail:
        tail = tail.partition(b"\n")[2]
    return tail.decode("utf-8", "ignore")


def write(report: Report, termination_log: Path, path: Path | None, stream: TextIO) -> None:
    """Write the report wherever it is looked for. One place that fails keeps the others from nothing."""
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
    with suppress(OSError):  # whoever reads the log may read no errors any more, either
        print(f"memtune: the report cannot be written to {place}: {error.strerror}", file=sys.stderr)


def _longest(short: Report, report: Report, name: str, limit_bytes: int) -> Report:
    """``short`` with as much of one of the report's fields as the limit leaves room for."""
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
    # The cause of a failure is at the end of a log, and at the beginning of anything else.
    part: dict[str, Any] = {name: value[len(value) - length :] if name == "log_tail" else value[:length]}
    return replace(short, **part)
