"""Traces a model on a machine without a GPU: nothing has memory behind it, and every allocation is written down."""

from __future__ import annotations

from memtune_runner.tracing.problems import TracingError
from memtune_runner.tracing.programs import trace, trace_subject

__all__ = ["TracingError", "trace", "trace_subject"]
