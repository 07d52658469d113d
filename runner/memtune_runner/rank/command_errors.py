"""Recognizes what a parser found wrong with the script's command line."""

from __future__ import annotations

import os
import re
import sys
import traceback
from types import FrameType

from memtune.wire import environment

# Their functions find the mistake themselves; a script that calls `error` may judge more than its command line.
_PARSERS = ("argparse", "jsonargparse", "transformers.hf_argparser")
_OF_PLAN = (
    environment.PLAN,
    environment.MICRO_BATCH,
    environment.ACCUMULATION,
    environment.DEEPSPEED_CONFIG,
    environment.EVALUATION_BATCH,
)
_WORD = re.compile(r"[\w./-]+")


def parser_error(error: SystemExit) -> str:
    """Return what an ``argparse.ArgumentParser``, or a subclass, found wrong with the arguments; empty if nothing."""
    return _parser_error(error)[0]


def is_bad_command(error: BaseException) -> bool:
    """Whether a parser refused the command line, and would under any plan: its words name no value of this one."""
    if isinstance(error, SystemExit):
        message, finder = _parser_error(error)
    else:
        # The Trainer's parser raises an exception for an argument that it does not know.
        *_, finder = ("", *(_module(frame) for frame, _ in traceback.walk_tb(error.__traceback__)))
        message = str(error) if finder.startswith(_PARSERS) else ""
    values = " ".join(os.environ.get(name, "") for name in _OF_PLAN)
    return finder.startswith(_PARSERS) and set(_WORD.findall(message)).isdisjoint(_WORD.findall(values))


def _parser_error(error: SystemExit) -> tuple[str, str]:
    """The words of the parser that ended the script, and the module that found the mistake."""
    parsers, finder = getattr(sys.modules.get("argparse"), "ArgumentParser", ()), ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        parser, message = frame.f_locals.get("self"), frame.f_locals.get("message")
        if frame.f_code.co_name == "error" and isinstance(parser, parsers) and isinstance(message, str):
            return f"{parser.prog}: error: {message}", finder
        finder = _module(frame)
    return "", ""


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
