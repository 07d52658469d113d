"""`memtune trace MODULE:FACTORY`: traces a user's model without a GPU and without allocating its memory."""

from __future__ import annotations

import argparse
from pathlib import Path

from memtune.units import counted
from memtune_cli.input.tracing import trace_into
from memtune_cli.views.screen import stdout_screen


def run(arguments: argparse.Namespace) -> int:
    """Trace in a child process, which isolates errors in the user's code."""
    from memtune.wire.trace import loads

    output: Path = arguments.output or Path(f"{arguments.factory.replace(':', '.')}.trace.json")
    trace_into(
        output, arguments.factory, arguments.sequence_length, arguments.numerics,
        arguments.batch, arguments.memory, arguments.time_limit,
    )  # fmt: skip
    traced = loads(output.read_text())
    blocks = counted(traced.blocks, "repeated block")
    lines = [
        f"{output}: {traced.model}, {traced.total:,} parameters, {blocks}, {traced.sequence_length} tokens a row",
        *(f"  Assumed: {each}" for each in traced.assumed),
        f"  memtune timeline {output} --plan bf16-z2-sel-mb4x8",
    ]
    print(stdout_screen().plain("\n".join(lines)))
    return 0
