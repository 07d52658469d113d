"""Refuses a Python too old for the runner. This file must stay readable for Python 3.6."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_OLDEST = (3, 10)


def refuse_old_python() -> None:
    """End the process with one line and a report if Python is older than 3.10."""
    if sys.version_info[:2] >= _OLDEST:
        return
    found = ".".join(str(number) for number in sys.version_info[:3])
    message = f"{sys.executable} is Python {found}; MemTune needs 3.10 or newer: use another image, or runner.python"
    print(f"memtune: {message}", file=sys.stderr)
    report = json.dumps({"version": 1, "ending": "bad-input", "exitCode": 88, "message": message})
    for path in _places(os.environ):
        Path(path).write_text(report)
    sys.exit(88)


def _places(variables: "Mapping[str, str]") -> "list[str]":
    """Return where to write the report: a worker reports to its launcher, the launcher to the operator."""
    directory = variables.get("MEMTUNE_RANK_DIRECTORY")
    if directory:
        return [f"{directory}/report-{variables.get('RANK', '0')}.json"]
    places = [variables.get("MEMTUNE_TERMINATION_MESSAGE_PATH"), variables.get("MEMTUNE_REPORT_PATH")]
    return [path for path in places if path]
