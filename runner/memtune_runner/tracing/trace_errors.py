"""Explains in a sentence why a model cannot be traced."""

from __future__ import annotations

import re
import traceback

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from memtune_runner.rank.failure_causes import INSTALL, in_words, missing_module, words_of
from memtune_runner.rank.user_code import is_user_file

_NO_GPU = re.compile(
    "not compiled with CUDA|not linked with support for cuda|no CUDA GPUs|NVIDIA driver", re.IGNORECASE
)
_NO_END = (
    "a factory and its model must not end Python; code for running the file as a script belongs below "
    'if __name__ == "__main__"'
)


class TracingError(Exception):
    """The trace failed. The message says where, and what to do."""


def unbuilt(what: str, error: BaseException, advice: str) -> TracingError:
    """Explain an error of the user's code before the trace began, while doing ``what``.

    ``advice`` is used if nothing else is known about the error.
    """
    place = _users_line(error)
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return TracingError(
            f"{what} stopped{place} at operator {error.func}: the next operation depends on numbers in a tensor, "
            "and a trace has no data; let the factory use plain numbers there"
        )
    if missing := missing_module(error) or missing_module(error.__cause__):
        return TracingError(f"{what} needs {missing}{place}, which is not installed; {INSTALL}")
    if _is_about_memory(error):
        return TracingError(
            f"{what} took more host memory than it may{place}: {in_words(error)}; keep tensors with real memory "
            "out of the module's top level and the factory, or give a larger --memory"
        )
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return TracingError(f"{what} raised {in_words(error)}{place}; {_NO_END}")
    if _NO_GPU.search(words_of(error)):
        advice = f"there is no GPU where a model is traced; {advice}"
    return TracingError(f"{what} raised {in_words(error)}{place}; {advice}")


def explained(error: BaseException, module: str, operator: str) -> TracingError:
    """Explain an error in a module, during or after an operator."""
    line = _users_line(error)
    place = (f"{module}, operator {operator}" if operator else module) + (line and f",{line}")
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return TracingError(
            f"tracing stopped in {place}: the next operation depends on the data, and a trace has none; let the "
            "factory build that part with fixed shapes"
        )
    if isinstance(error, (UnsupportedOperatorException, NotImplementedError)) or "no fake impl" in words_of(error):
        return TracingError(
            f"tracing stopped in {place}: the operator does not say what it makes without its data; register a fake "
            "implementation of it (torch.library.register_fake)"
        )
    if _is_about_memory(error):
        return TracingError(
            f"tracing stopped in {place}: the limit of host memory is reached, so something there has real memory; "
            "make tensors inside the factory with torch's own functions, or give a larger --memory"
        )
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        return TracingError(f"tracing stopped in {place}: {in_words(error)}; {_NO_END}")
    if _NO_GPU.search(words_of(error)):
        return TracingError(
            f"tracing stopped in {place}: {in_words(error)}; there is no GPU where a model is traced, so let the model "
            "make its tensors where what goes into it is"
        )
    return TracingError(f"tracing stopped in {place}: {in_words(error)}")


def sparse_gradient(module: str, weight: str) -> TracingError:
    """Explain a weight with a sparse gradient, which has only the rows that the batch names."""
    return TracingError(
        f"tracing stopped in {module}: the gradient of {weight} is sparse, so its size depends on the data, and AdamW "
        "takes no such gradient; make the embedding with sparse=False"
    )


def _is_about_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in words_of(error)


def _users_line(error: BaseException) -> str:
    """Return the line of the user's code that caused the error, if any."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if is_user_file(each.filename)]
    return f" in {own[-1].filename}, line {own[-1].lineno}" if own else ""
