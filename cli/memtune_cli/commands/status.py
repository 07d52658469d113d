"""`memtune status NAME`: a job's progress, runs and next step on one screen."""

from __future__ import annotations

import argparse
import time
from typing import Any

from memtune.api.status import RunStatus, dump_status
from memtune_cli.input.job_view import JobView, error_ratio
from memtune_cli.input.named_job import named_job_view
from memtune_cli.views import json_output
from memtune_cli.views.job_page import page
from memtune_cli.views.next_step import next_step
from memtune_cli.views.screen import stdout_screen


def run(arguments: argparse.Namespace) -> int:
    """Show the status of the job."""
    view = named_job_view(arguments)
    if arguments.format == "table":
        screen = stdout_screen()
        print(screen.plain("\n".join(page(screen, view, time.time()))))
    else:
        print(json_output.dump(document_of(view), arguments.format))
    return 0


def document_of(view: JobView) -> dict[str, Any]:
    """The status as the operator wrote it, and the values derived from it."""
    found, status = view.budget, dump_status(view.status)
    budget = (
        {
            "done": found.done,
            "most": found.most,
            "gpuSecondsSpent": found.spent_seconds,
            "gpuSecondsAllowed": found.allowed_seconds,
        }
        if found
        else None
    )
    runs = {
        part: [{**written, **_derived(view, run)} for written, run in zip(status[part], records, strict=True)]
        for part, records in (
            ("emulations", view.status.emulations),
            ("probes", view.status.probes),
            ("attempts", view.status.attempts),
        )
    }
    return {
        "version": json_output.VERSION,
        "command": "status",
        "job": view.name,
        "namespace": view.namespace,
        "next": next_step(view),
        "usableBytes": view.usable_bytes,
        "headroom": view.headroom,
        **({"probeBudget": budget} if budget else {}),
        **({"checkpoint": view.checkpoint} if view.checkpoint else {}),
        "status": {**status, **runs},
    }


def _derived(view: JobView, run: RunStatus) -> dict[str, Any]:
    error, free, cost = error_ratio(run), view.free_share(run), view.cost(run.tokens_per_second)
    return {
        "outcome": view.outcome(run),
        "isWinner": view.is_winner(run),
        **({"errorRatio": round(error, 4)} if error is not None else {}),
        **({"freeRatio": round(free, 4)} if free is not None else {}),
        **({"costPerMillionTokens": cost} if cost is not None else {}),
    }
