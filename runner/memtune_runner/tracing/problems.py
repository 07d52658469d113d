"""Why a model cannot be traced, in a sentence."""

from __future__ import annotations

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)


class TracingError(Exception):
    """What stopped the trace: where, and what to do."""


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
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return TracingError(
            f"tracing stopped in {place}: the limit of host memory is reached, so something there has real memory; "
            "make tensors inside the factory with torch's own functions, or give a larger --memory"
        )
    first = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    return TracingError(f"tracing stopped in {place}: {type(error).__name__}: {first}")
