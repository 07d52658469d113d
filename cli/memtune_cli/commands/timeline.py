"""`memtune timeline TRACE --plan PLAN`: the memory of one step of a traced model, by kind."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from memtune.memory.replay import Replayed, Replayer, Timeline
from memtune.plans.plan import Plan
from memtune.units import GIB, gib
from memtune.wire.trace import Trace, TraceError
from memtune_cli.errors import InputError
from memtune_cli.input.tracing import read_trace
from memtune_cli.views import json_output
from memtune_cli.views.render import Column, table
from memtune_cli.views.screen import Screen, stdout_screen


def run(arguments: argparse.Namespace) -> int:
    """Replay one plan and show its peak."""
    trace = read_trace(arguments.trace)
    try:
        plan = Plan.parse(arguments.plan)
        replayer = Replayer(trace, arguments.nodes, arguments.gpus_per_node)
        replayed, timeline = replayer.replay(plan), replayer.timeline(plan)
    except TraceError as error:
        raise InputError(f"{arguments.trace}: {error}") from None
    except ValueError as error:
        raise InputError(f"--plan: {error}") from None
    if arguments.plot:
        draw(arguments.plot, f"{trace.model}: {plan}", timeline, "--plot")
    if arguments.format == "table":
        screen = stdout_screen()
        print(screen.plain("\n".join(_page(screen, trace, plan, replayed, timeline))))
    else:
        print(json_output.dump(_document(trace, plan, replayed, timeline), arguments.format))
    return 0


def draw(path: Path, title: str, timeline: Timeline, option: str) -> None:
    """Draw a step into the file given by a command-line option."""
    if path.suffix == ".html":
        from memtune_cli.views.timeline_page import write
    else:
        from memtune_cli.views.timeline_plot import write
    try:
        write(path, title, timeline)
    except OSError as error:
        raise InputError(f"{option}: {path} cannot be written: {error.strerror}") from None


def _page(screen: Screen, trace: Trace, plan: Plan, replayed: Replayed, timeline: Timeline) -> list[str]:
    peak = replayed.peak
    return [
        screen.bold(f"{trace.model}: {plan}"),
        f"  {trace.total:,} parameters, {trace.sequence_length} tokens a row, traced with the kernels of a "
        f"{trace.kernels.upper()}",
        f"  The allocator reserves {gib(peak.reserved, 2)} on each GPU. CUDA's context and NCCL come on top.",
        "",
        screen.bold("At the peak"),
        *_kinds(screen, timeline),
        "",
        screen.bold("Phases"),
        *_phases(screen, replayed),
    ]


def _kinds(screen: Screen, timeline: Timeline) -> list[str]:
    sizes = timeline.points[timeline.peak]
    total = sum(sizes)
    rows = [
        (name, f"{size / GIB:.2f}", f"{size / total:.0%}")
        for name, size in zip(timeline.kinds, sizes, strict=True)
        if size
    ]
    return table(screen, (Column("kind", right=False), Column("GiB"), Column("share")), rows)


def _phases(screen: Screen, replayed: Replayed) -> list[str]:
    columns = ("phase", "requested", "active", "reserved", "fragmentation")
    rows = [
        (name, *(f"{size / GIB:.2f}" for size in (each.requested, each.active, each.reserved)),
         f"{each.fragmentation:.1%}")
        for name, each in replayed.phases.items()
    ]  # fmt: skip
    return table(screen, [Column(name, right=name != "phase") for name in columns], rows)


def _document(trace: Trace, plan: Plan, replayed: Replayed, timeline: Timeline) -> dict[str, Any]:
    return {
        "version": json_output.VERSION,
        "command": "timeline",
        "model": trace.model,
        "plan": str(plan),
        "atPeakBytes": dict(zip(timeline.kinds, timeline.points[timeline.peak], strict=True)),
        "phases": {
            name: {
                "requestedBytes": each.requested,
                "allocatedBytes": each.allocated,
                "activeBytes": each.active,
                "reservedBytes": each.reserved,
                "fragmentation": round(each.fragmentation, 4),
            }
            for name, each in replayed.phases.items()
        },
    }
