"""Tells what a run died of, from the exception or from the words that were left behind.

This module imports no torch: the launcher, which must outlive every worker, uses it too.
"""

from __future__ import annotations

import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from memtune.controller.verdict import BROKEN_GPU
from memtune.wire.report import EXIT_CODES, Ending

# Where each wording comes from is said beside it. A run that shows none of them did not die of memory.
_DEVICE_OOM = re.compile(
    r"(?:CUDA|HIP) out of memory\. Tried to allocate"  # CUDACachingAllocator.cpp (pytorch)
    r"|(?:CUDA|HIP)(?: driver)? error: out of memory"  # CUDAException.cpp, CUDADriverAPI (pytorch): outside the cache
    r"|CUDA Error: out of memory"  # logging.h (TransformerEngine)
    r"|CUDA error \([^()\n]+:\d+\): out of memory"  # CHECK_CUDA (flash-attention)
    r"|\bError out of memory at line \d+ in file"  # CUDA_CHECK_RETURN (bitsandbytes), which ends the process
    r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory"  # the runtimes' and drivers' own names
    r"|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"  # cuDNN to 8, and from 9
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUSPARSE_STATUS_ALLOC_FAILED"
    r"|CUSOLVER_STATUS_ALLOC_FAILED"
    r"|CUFFT_ALLOC_FAILED"
    r"|(?:Cuda|HIP) failure (?:2 )?'out of memory'"  # checks.h (NCCL, RCCL), carried by torch's DistBackendError
    r"|Failed to CUDA [cm]alloc(?: async)? \d+ bytes"  # alloc.h (NCCL): said after the line above, and so instead of it
    r"|Triton Error \[CUDA\]: out of memory"
    r"|Triton Error \[HIP\]: +Code: 2\b"  # backends/amd/driver.c (triton); 2 is hipErrorOutOfMemory
)
_HOST_OOM = re.compile(
    r"DefaultCPUAllocator: (?:can't|not enough memory: you tried to) allocate"  # alloc_cpu.cpp (pytorch)
    r"|std::bad_alloc"
    r"|\bCannot allocate memory\b"  # ENOMEM, from fork, mmap and shm_open
    r"|^MemoryError\b"
    r"|_ArrayMemoryError: Unable to allocate"  # numpy
    r"|CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"
    r"|Failed to CUDA host alloc \d+ bytes|\bFailed to malloc \d+ bytes"  # alloc.h (NCCL); the first is pinned memory
    r"|workers are out of shared memory"  # torch/utils/data/_utils/signal_handling.py, after a bus error
    r"|unable to allocate shared memory"  # MapAllocator.cpp (pytorch)
    r"|DataLoader worker \(pid \d+\) is killed by signal: Killed",
    re.MULTILINE,
)
# A library's handle could not be made: there was no room left for it, or the device or its driver is out of order.
_NO_HANDLE = re.compile(r"(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_NOT_INITIALIZED")
# What the other ranks say when one has gone. Never the cause, whatever it is worded like.
_CONSEQUENCE = re.compile(
    r"NCCL communicator was aborted"
    r"|Watchdog caught collective operation timeout"
    r"|ncclRemoteError|remote process exited or there was a network error"
    r"|Connection closed by peer|Connection reset by peer|Broken pipe"
)
_LONGEST_WORDS = 500
# What helps where a module is missing: nothing is wrong with the code that asked for it.
INSTALL = "install it into the job's image, or without a cluster beside torch"


class Failure(NamedTuple):
    """What one rank died of. ``is_consequence`` says that it only followed another rank."""

    ending: Ending
    exit_code: int
    message: str
    is_consequence: bool = False


def of_exception(error: BaseException, device_is_full: Callable[[], bool] = lambda: False) -> Failure:
    """What the exception, or anything it wraps or was raised while handling, says the run died of.

    ``device_is_full`` is asked where the words alone do not tell an out-of-memory from a device that is broken.
    """
    own_exit_code = _own_exit_code(error)
    if own_exit_code == 0:
        return Failure(Ending.SUCCEEDED, 0, "")
    for each in _chain(error):
        ending = _ending_of_one(each)
        if ending is not None:
            return Failure(ending, EXIT_CODES[ending], _described(each))
    without_handle = next((each for each in _chain(error) if _NO_HANDLE.search(words_of(each))), None)
    if without_handle is not None and device_is_full():
        return Failure(Ending.DEVICE_OOM, EXIT_CODES[Ending.DEVICE_OOM], _described(without_handle))
    is_consequence = any(_CONSEQUENCE.search(words_of(each)) for each in _chain(error))
    return Failure(Ending.ERROR, own_exit_code, _why_it_ended(error), is_consequence)


def of_words(log: str, exit_code: int) -> Failure:
    """What a worker died of that left no report, from the end of its log and its exit code (not 0)."""
    for pattern, ending in ((_DEVICE_OOM, Ending.DEVICE_OOM), (_HOST_OOM, Ending.HOST_OOM)):
        line = _matching_line(pattern, log)
        if line is not None:
            return Failure(ending, EXIT_CODES[ending], line)
    # A library's own thread ends the process with a signal, and its last words are all that there is.
    if (line := _matching_line(BROKEN_GPU, log)) is not None:
        return Failure(_ending_of_code(exit_code), exit_code, line)
    line = _matching_line(_CONSEQUENCE, log)
    return Failure(_ending_of_code(exit_code), exit_code, line or _code_in_words(exit_code), line is not None)


def missing_module(error: BaseException | None) -> str:
    """The module that is not installed, if that is the error."""
    return error.name or "" if isinstance(error, ModuleNotFoundError) else ""


def is_consequence(words: str) -> bool:
    """Whether this is what a rank says when another one has gone."""
    return _CONSEQUENCE.search(words) is not None


def first_cause(failures: Sequence[Failure]) -> Failure:
    """Of the failures of all ranks, in the order in which they were noticed, the one that brought the others about."""
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


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and all behind it, outermost first. ``from None`` hides a cause from readers, not from us."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        members = getattr(each, "exceptions", ())  # of an ExceptionGroup, which Python 3.10 does not have
        behind = (each.__cause__, each.__context__, *(members if isinstance(members, tuple) else ()))
        waiting += [other for other in behind if isinstance(other, BaseException)]


def _ending_of_one(error: BaseException) -> Ending | None:
    if isinstance(error, MemoryError):
        return Ending.HOST_OOM
    message = words_of(error)
    if _is_torch_oom(error) or _DEVICE_OOM.search(message):
        return Ending.HOST_OOM if _was_pinning(error) else Ending.DEVICE_OOM
    return Ending.HOST_OOM if _HOST_OOM.search(message) else None


def _is_torch_oom(error: BaseException) -> bool:
    names = [(kind.__module__.split(".")[0], kind.__name__) for kind in type(error).__mro__]
    return ("torch", "OutOfMemoryError") in names


def _was_pinning(error: BaseException) -> bool:
    """Page-locking host memory (DeepSpeed's offload does) fails in the words of the device."""
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
    return f"{described}; {INSTALL}" if missing_module(error) else described


def _why_it_ended(error: BaseException) -> str:
    """What a script died of; if it ended itself with a number, the parser's error or the exception behind it."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        if said := _parser_error(error):
            return said
        if isinstance(error.__context__, Exception):
            return _described(error.__context__)
    return _described(error)


def _parser_error(error: SystemExit) -> str:
    """What an ``argparse.ArgumentParser``, or a parser derived from it, found wrong with the arguments."""
    parsers = getattr(sys.modules.get("argparse"), "ArgumentParser", ())
    for frame, _ in traceback.walk_tb(error.__traceback__):
        parser, message = frame.f_locals.get("self"), frame.f_locals.get("message")
        if frame.f_code.co_name == "error" and isinstance(parser, parsers) and isinstance(message, str):
            return f"{parser.prog}: error: {message}"
    return ""


def in_words(error: BaseException) -> str:
    """The error and the first line of its message."""
    lines = words_of(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:_LONGEST_WORDS] if lines else 'no message'}"


def words_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a user's __str__ may do anything, and must not cost us the report
        return ""


def _matching_line(pattern: re.Pattern[str], log: str) -> str | None:
    match = pattern.search(log)
    if match is None:
        return None
    start = log.rfind("\n", 0, match.start()) + 1
    return log[start:].split("\n", 1)[0].strip()
