"""Error messages for a trace process that failed, by its exit and its last known place. Pure."""

from __future__ import annotations

import re
import signal

from memtune.units import gib
from memtune_runner.rank.failure_causes import in_words
from memtune_runner.rank.user_code import is_user_file

# A frame as faulthandler writes it.
_FRAME = re.compile(r'^ +File "(.*)", line (\d+) in ', re.MULTILINE)
_ADVICE: dict[int, str] = {
    signal.SIGKILL: "the kernel does that where host memory runs out; if it did, the factory needs less of it or the "
    "machine more",
    signal.SIGABRT: "a compiled library does that where it cannot go on, or gets no more memory",
}
_AT_FAULT = "the code there, or a compiled library that it calls, is at fault"


def where(place: str, stack: str) -> str:
    """Describe what the process was doing, with the user's line if the stack has one."""
    own = next((f" in {file}, line {line}" for file, line in _FRAME.findall(stack) if is_user_file(file)), "")
    return f"{place or 'while torch was imported'}{own and ','}{own}"


def of_code(code: int, where_it_was: str) -> str:
    """The message for a process that exited without an outcome; a negative code is a signal's."""
    if code >= 0:
        return (
            f"the process ended itself with exit code {code} {where_it_was}; a factory and its model must not end "
            "Python, as os._exit does"
        )
    number = -code
    return f"the process was ended by {_named(number)} {where_it_was}; {_ADVICE.get(number, _AT_FAULT)}"


def late(seconds: int, where_it_was: str) -> str:
    """The message for a process that exceeded its time."""
    return f"tracing took longer than it may, {seconds} s, {where_it_was}; give a larger --time-limit if it needs more"


def greedy(memory_bytes: int, where_it_was: str) -> str:
    """The message for processes that filled memory which no per-process limit counts."""
    return (
        f"the factory took more host memory than it may, {gib(memory_bytes)} with what its processes share, "
        f"{where_it_was}; make tensors with torch's own functions and leave data out, or give a larger --memory"
    )


def unexpected(error: BaseException, place: str) -> str:
    """The message for an unexpected exception."""
    return f"tracing stopped {place or 'while torch was imported'}: {in_words(error)}"


def _named(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
