"""Traces a model without a GPU: tensors have no memory behind them, and every allocation is recorded."""

from __future__ import annotations

from memtune_runner.tracing.problems import TracingError
from memtune_runner.tracing.programs import trace, trace_subject

__all__ = ["TracingError", "trace", "trace_subject"]
