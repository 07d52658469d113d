"""Why a model cannot be traced, in a sentence."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from memtune_runner.failures import INSTALL, missing_module

_NO_GPU = re.compile(
    "not compiled with CUDA|not linked with support for cuda|no CUDA GPUs|NVIDIA driver", re.IGNORECASE
)
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_OURS = str(Path(__file__).parent)


class TracingError(Exception):
    """What stopped the trace: where, and what to do."""


def in_words(error: BaseException) -> str:
    """The error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def unbuilt(what: str, error: BaseException) -> TracingError:
    """The sentence about an error of the user's code that came up before the trace began, as ``what`` was done."""
    place = _users_line(error)
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return TracingError(
            f"{what} stopped{place} at operator {error.func}: what comes next depends on numbers in a tensor, and "
            "without data it has none; let the factory use plain numbers there"
        )
    if missing := missing_module(error) or missing_module(error.__cause__):
        return TracingError(f"{what} needs {missing}{place}, which is not installed; {INSTALL}")
    if _is_about_memory(error):
        return TracingError(
            f"{what} took more host memory than it may{place}: {in_words(error)}; what has real memory belongs into "
            "neither the module's top level nor the factory, or give a larger --memory"
        )
    advice = "what needs a GPU or data belongs into functions, not on the module's top level"
    if _NO_GPU.search(str(error)):
        advice = "there is no GPU where a model is traced, so the factory must not move it to one; " + advice
    return TracingError(f"{what} raised {in_words(error)}{place}; {advice}")


def explained(error: Exception, module: str, operator: str) -> TracingError:
    """The sentence about an error that came up in a module, while or after an operator ran."""
    place = f"{module}, operator {operator}" if operator else module
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return TracingError(
            f"tracing stopped in {place}: what comes next depends on the data, and a trace has none; let the factory "
            "build that part with fixed shapes"
        )
    if isinstance(error, (UnsupportedOperatorException, NotImplementedError)) or "no fake impl" in str(error):
        return TracingError(
            f"tracing stopped in {place}: the operator does not say what it makes without its data; register a fake "
            "implementation of it (torch.library.register_fake)"
        )
    if _is_about_memory(error):
        return TracingError(
            f"tracing stopped in {place}: the limit of host memory is reached, so something there has real memory; "
            "make tensors inside the factory with torch's own functions, or give a larger --memory"
        )
    return TracingError(f"tracing stopped in {place}: {in_words(error)}")


def _is_about_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def _users_line(error: BaseException) -> str:
    """Where in the user's own code the error came from, if it did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not each.filename.startswith((*_LIBRARIES, _OURS, "<"))]
    return f" in {own[-1].filename}, line {own[-1].lineno}" if own else ""
