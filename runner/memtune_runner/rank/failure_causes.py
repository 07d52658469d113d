"""The causes of failures, such as GPU or host out-of-memory, from an exception or from the last words of a log.

`out_of_memory_messages` has the wordings; `watch/out_of_memories.py` follows a script that catches an out-of-memory.
Imports no torch, because the launcher uses it too.
"""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from memtune.wire.report import BROKEN_GPU, EXIT_CODES, Ending
from memtune_runner.rank.bad_input import BadCommandError, BadInputError
from memtune_runner.rank.command_errors import is_bad_command, parser_error
from memtune_runner.rank.out_of_memory_messages import CONSEQUENCE, DEVICE_OOM, HOST_OOM, NO_HANDLE

_LONGEST_WORDS = 500
# DeepSpeed, where offload to NVMe finds no libaio to compile its library with.
_NO_ASYNC_IO = "Unable to JIT load the async_io op"
_INSTALL_ASYNC_IO = (
    "offload nvme needs libaio's headers (libaio-dev), and DeepSpeed's library best built into the image, by "
    "DS_BUILD_AIO=1 DS_BUILD_PIN_MEMORY=1 pip install deepspeed"
)
# The remedy for a missing module: the code that imports it is fine.
INSTALL = "install it into the job's image, or without a cluster beside torch"


class ProcessEnd(NamedTuple):
    """How the process of one rank ended, and if it failed, why.

    ``is_consequence`` marks a failure caused by another rank's, ``is_bad_command`` one that any plan would meet.
    """

    ending: Ending
    exit_code: int
    message: str
    is_consequence: bool = False
    is_bad_command: bool = False


def of_exception(error: BaseException, device_is_full: Callable[[], bool] = lambda: False) -> ProcessEnd:
    """Classify an exception by itself and everything that it wraps or was raised while handling.

    ``device_is_full`` is called if the words alone cannot tell an out-of-memory from a broken device.
    """
    own_exit_code = _own_exit_code(error)
    if own_exit_code == 0:
        return ProcessEnd(Ending.SUCCEEDED, 0, "")
    for each in chain(error):
        ending = _ending_of_one(each)
        if ending is not None:
            return ProcessEnd(ending, EXIT_CODES[ending], _described(each))
    without_handle = next((each for each in chain(error) if NO_HANDLE.search(words_of(each))), None)
    if without_handle is not None and device_is_full():
        return ProcessEnd(Ending.DEVICE_OOM, EXIT_CODES[Ending.DEVICE_OOM], _described(without_handle))
    is_consequence = any(CONSEQUENCE.search(words_of(each)) for each in chain(error))
    message = _why_it_ended(error)
    return ProcessEnd(Ending.ERROR, own_exit_code, message, is_consequence, is_bad_command(error, message))


def of_bad_input(error: BaseException) -> ProcessEnd:
    """Return the failure of a run that was given what cannot work."""
    ending = error.ending if isinstance(error, BadInputError) else Ending.BAD_INPUT
    return ProcessEnd(ending, EXIT_CODES[ending], str(error), is_bad_command=isinstance(error, BadCommandError))


def of_words(log: str, exit_code: int) -> ProcessEnd:
    """Classify a worker without a report, from the end of its log and its exit code (not 0)."""
    for pattern, ending in ((DEVICE_OOM, Ending.DEVICE_OOM), (HOST_OOM, Ending.HOST_OOM)):
        line = _matching_line(pattern, log)
        if line is not None:
            return ProcessEnd(ending, EXIT_CODES[ending], line)
    # A library's thread ends the process with a signal, so only its last words remain.
    if (line := _matching_line(BROKEN_GPU, log)) is not None:
        return ProcessEnd(_ending_of_code(exit_code), exit_code, line)
    line = _matching_line(CONSEQUENCE, log)
    return ProcessEnd(_ending_of_code(exit_code), exit_code, line or _code_in_words(exit_code), line is not None)


def missing_module(error: BaseException | None) -> str:
    """Return the name of the module that is not installed, if that is the error."""
    return error.name or "" if isinstance(error, ModuleNotFoundError) else ""


def is_consequence(words: str) -> bool:
    """Whether a rank prints these words when another rank is gone."""
    return CONSEQUENCE.search(words) is not None


def first_cause(failures: Sequence[ProcessEnd]) -> ProcessEnd:
    """Return the failure that caused the others; ``failures`` are ordered by the time they were noticed."""
    if not failures:
        raise ValueError("no failure was noted; ask for the cause only after one was")
    return next((each for each in failures if not each.is_consequence), failures[0])


def _ending_of_code(exit_code: int) -> Ending:
    own = {code: ending for ending, code in EXIT_CODES.items()}
    return own.get(exit_code, Ending.KILLED if exit_code > 128 else Ending.ERROR)


def _code_in_words(exit_code: int) -> str:
    try:
        return f"a worker was killed by signal {exit_code - 128} ({signal.Signals(exit_code - 128).name})"
    except ValueError:
        return f"a worker ended with code {exit_code}"


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and its causes, outermost first, including those hidden by ``from None``."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        members = getattr(each, "exceptions", ())  # of an ExceptionGroup, unknown to Python 3.10
        behind = (each.__cause__, each.__context__, *(members if isinstance(members, tuple) else ()))
        waiting += [other for other in behind if isinstance(other, BaseException)]


def _ending_of_one(error: BaseException) -> Ending | None:
    if isinstance(error, MemoryError):
        return Ending.HOST_OOM
    message = words_of(error)
    if _is_torch_oom(error) or DEVICE_OOM.search(message):
        return Ending.HOST_OOM if _is_pinning_error(error) else Ending.DEVICE_OOM
    return Ending.HOST_OOM if HOST_OOM.search(message) else None


def _is_torch_oom(error: BaseException) -> bool:
    names = [(kind.__module__.split(".")[0], kind.__name__) for kind in type(error).__mro__]
    return ("torch", "OutOfMemoryError") in names


def _is_pinning_error(error: BaseException) -> bool:
    """Whether the error comes from page-locking host memory (DeepSpeed's offload): its words blame the device."""
    return any("pin_memory" in f"{frame.name} {frame.line}" for frame in traceback.extract_tb(error.__traceback__)[-2:])


def _own_exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 130
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _described(error: BaseException) -> str:
    described = f"{type(error).__name__}: {words_of(error)}".strip().removesuffix(":")
    if _NO_ASYNC_IO in described:
        return f"{described}; {_INSTALL_ASYNC_IO}"
    return f"{described}; {INSTALL}" if missing_module(error) else described


def _why_it_ended(error: BaseException) -> str:
    """Return why a script ended; behind a numeric exit code, the parser's error or the original exception."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        if said := parser_error(error):
            return said
        if isinstance(error.__context__, Exception):
            return _described(error.__context__)
    return _described(error)


def in_words(error: BaseException) -> str:
    """Return the error's type and the first line of its message."""
    lines = words_of(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:_LONGEST_WORDS] if lines else 'no message'}"


def words_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a user's __str__ may raise anything and must not cost the report
        return ""


def _matching_line(pattern: re.Pattern[str], log: str) -> str | None:
    match = pattern.search(log)
    if match is None:
        return None
    start = log.rfind("\n", 0, match.start()) + 1
    return log[start:].split("\n", 1)[0].strip()
