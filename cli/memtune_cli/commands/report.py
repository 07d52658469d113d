"""`memtune report NAME -o report.html`: a job's report as one HTML page."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from memtune.api.status import to_seconds
from memtune_cli.errors import InputError
from memtune_cli.input.job_view import JobView
from memtune_cli.input.named_job import named_job_view
from memtune_cli.input.prometheus import Series, device_memory
from memtune_cli.views.candidates import costs, known_plans
from memtune_cli.views.report_page import html_page


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    view, now = named_job_view(arguments), time.time()
    series = _series(arguments.prometheus, view, now) if arguments.prometheus else []
    plans = known_plans(view)
    text = html_page(view, plans, costs(view, plans), series, now)
    try:
        Path(arguments.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--output: {arguments.output} cannot be written: {error.strerror}") from None
    print(f"{arguments.output}: the report of {view.title}")
    return 0


def _series(url: str, view: JobView, now: float) -> list[Series]:
    """The memory of the attempts over time, from Prometheus."""
    begins = [begin for run in view.status.attempts if (begin := to_seconds(run.started_at))]
    if not begins:
        return []
    ends = [to_seconds(run.ended_at) or now for run in view.status.attempts]
    found = device_memory(url, view.namespace, view.name, min(begins), max(ends))
    if not any(each.points for each in found):
        raise InputError(f"--prometheus: {url} has no memory of {view.namespace}/{view.name}; leave --prometheus out")
    return found
