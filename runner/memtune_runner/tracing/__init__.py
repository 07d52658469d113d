"""Traces a model without a GPU: tensors have no memory behind them, and every allocation is recorded."""

from __future__ import annotations

from memtune_runner.tracing.programs import trace, trace_subject
from memtune_runner.tracing.trace_errors import TracingError

__all__ = ["TracingError", "trace", "trace_subject"]
