"""Recognizes what a parser found wrong with the script's command line."""

from __future__ import annotations

import re
import sys
import traceback
from typing import Any

# Messages about a command that is wrong with any values, from argparse, jsonargparse and transformers'
# HfArgumentParser. A value may be the plan's, be empty under it, or name a file that will be there later.
_WRONG = re.compile(
    r"[Uu]nrecognized arguments: -|the following arguments are required: |"
    r"Some specified arguments are not used by the HfArgumentParser"
)


def parser_error(error: SystemExit) -> str:
    """Return what argparse, or a subclass, click or typer found wrong with the arguments; empty if nothing."""
    parsers = getattr(sys.modules.get("argparse"), "ArgumentParser", ())
    for frame, _ in traceback.walk_tb(error.__traceback__):
        parser, message = frame.f_locals.get("self"), frame.f_locals.get("message")
        if frame.f_code.co_name == "error" and isinstance(parser, parsers) and isinstance(message, str):
            return f"{parser.prog}: error: {message}"
    shown = _shown_by_click(error)
    return "" if shown is None else f"Error: {shown.format_message()}"


def is_bad_command(error: BaseException, message: str) -> bool:
    """Whether a parser refused the command line with this message, and would under any plan."""
    if isinstance(error, SystemExit) and _is_unknown_option(_shown_by_click(error)):
        return True
    return isinstance(error, (SystemExit, ValueError)) and bool(_WRONG.search(message))


def _shown_by_click(error: SystemExit) -> Any:
    """Return the error that click, or typer's copy of it, has printed before it ended the script; None if none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Newer versions handle the error first, and only remember how to print it.
    reports = (frame.f_locals.get("report") for frame in frames if frame.f_code.co_name == "main")
    printed = (getattr(report, "__self__", None) for report in reports)
    # An exit of the script's own, while it handled such an error, has been raised elsewhere.
    handled = error.__context__ if frames and _is_of_click(frames[-1]) else None
    return next((each for each in (handled, *printed) if hasattr(each, "format_message")), None)


def _is_of_click(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("click", "typer")


def _is_unknown_option(error: Any) -> bool:
    """Whether click does not know an option of the command that it has come to.

    It takes any word after an option for its value. Where a value is empty under a plan, it may be the name of a
    subcommand, whose options it then looks for in the group.
    """
    name, command = getattr(error, "option_name", None), getattr(getattr(error, "ctx", None), "command", None)
    is_named = isinstance(name, str) and name.lstrip("-")[:1].isalpha()  # no negative number, left without its option
    return is_named and command is not None and not hasattr(command, "list_commands")
