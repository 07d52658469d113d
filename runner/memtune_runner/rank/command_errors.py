"""Recognizes what a parser found wrong with the script's command line."""

from __future__ import annotations

import re
import sys
import traceback

# What a parser says of a command that is wrong whatever its values are: argparse's words, jsonargparse's and those of
# transformers' HfArgumentParser. A value may be the plan's, be empty under it, or name a file that will be there later.
_WRONG = re.compile(
    r"[Uu]nrecognized arguments: -|the following arguments are required: |"
    r"Some specified arguments are not used by the HfArgumentParser"
)


def parser_error(error: SystemExit) -> str:
    """Return what an ``argparse.ArgumentParser``, or a subclass, found wrong with the arguments; empty if nothing."""
    parsers = getattr(sys.modules.get("argparse"), "ArgumentParser", ())
    for frame, _ in traceback.walk_tb(error.__traceback__):
        parser, message = frame.f_locals.get("self"), frame.f_locals.get("message")
        if frame.f_code.co_name == "error" and isinstance(parser, parsers) and isinstance(message, str):
            return f"{parser.prog}: error: {message}"
    return ""


def is_bad_command(error: BaseException, message: str) -> bool:
    """Whether a parser refused the command line with this message, and would under any plan."""
    return isinstance(error, (SystemExit, ValueError)) and bool(_WRONG.search(message))
