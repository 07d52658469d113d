"""The `launch` subcommand. It always ends with a report."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from memtune.wire import environment
from memtune.wire.report import EXIT_CODES, Ending, Report
from memtune_runner.command.command import CommandError, parse
from memtune_runner.launch.launcher import Launcher
from memtune_runner.launch.workers import Start, started
from memtune_runner.launch.write_report import write
from memtune_runner.rank.settings import Settings, SettingsError, read_settings


def main(words: Sequence[str], start: Start = started) -> int:
    """Run the command in ``words`` in every rank of this node and return its exit code."""
    with _rank_directory(os.environ) as ranks:
        try:
            settings = read_settings(os.environ)
            launcher = Launcher(settings, parse(words), Path(ranks), start)
        except (SettingsError, CommandError) as error:
            return _reported(_bad_input(str(error)))
        report = launcher.run()
        try:
            return _reported(report)
        finally:
            launcher.leave()


def _reported(report: Report) -> int:
    """Write the report where the variables say, even if no other variable is valid."""
    with suppress(OSError):
        sys.stdout.flush()
    message_path = os.environ.get(environment.TERMINATION_MESSAGE_PATH) or Settings.termination_message_path
    path = os.environ.get(environment.REPORT_PATH)
    write(report, Path(message_path), Path(path) if path else None, sys.stdout)
    _let_go_of(sys.stdout)
    return report.exit_code


def _let_go_of(stream: TextIO) -> None:
    """Give up a stream that nobody reads; Python would flush it again at exit and change the exit code."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _bad_input(message: str) -> Report:
    print(f"memtune: {message}", file=sys.stderr, flush=True)
    return Report(Ending.BAD_INPUT, EXIT_CODES[Ending.BAD_INPUT], message=message)


def _rank_directory(variables: Mapping[str, str]) -> tempfile.TemporaryDirectory[str]:
    """Create a directory for the ranks' reports; the root file system may be read-only."""
    report_path = variables.get(environment.REPORT_PATH)
    places = [str(Path(report_path).parent)] if report_path else []
    writable = (
        place for place in (*places, variables.get("TMPDIR") or "/tmp", "/dev/shm") if os.access(place, os.W_OK)
    )
    return tempfile.TemporaryDirectory(prefix="memtune-ranks-", dir=next(writable, None), ignore_cleanup_errors=True)
