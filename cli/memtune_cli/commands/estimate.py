"""`memtune estimate JOB.yaml --plan PLAN`: predicts one plan in detail."""

from __future__ import annotations

import argparse
from itertools import product
from typing import TYPE_CHECKING, Any

from memtune.memory.prediction import Prediction
from memtune.plans.plan import Plan
from memtune.units import Unit, unit_of
from memtune_cli.input.job_file import read_case
from memtune_cli.input.prediction_case import PredictionCase
from memtune_cli.views import json_output
from memtune_cli.views.kv_cache import cache_document, cache_of, generating
from memtune_cli.views.plan_sections import detail_lines, host_lines, title, verdict
from memtune_cli.views.render import Column, between_bytes, table
from memtune_cli.views.screen import Screen, stdout_screen

if TYPE_CHECKING:
    from memtune.planning.space import Candidate

_POINTS = 16


def run(arguments: argparse.Namespace) -> int:
    """Predict one plan and show the details."""
    case, plan = read_case(arguments.job, arguments.gpu).what_if(arguments.plan)
    prediction = case.predictor.predict(plan)
    if arguments.plot:
        from memtune_cli.views.plot import draw

        draw(arguments.plot, case, plan, _around(case, plan))
    if arguments.format == "table":
        screen = stdout_screen()
        print(screen.plain("\n".join(_page(screen, case, plan, prediction))))
    else:
        print(json_output.dump(_document(case, plan, prediction), arguments.format))
    return 0 if case.fits_gpu_and_host(plan, prediction) else 1


def _around(case: PredictionCase, plan: Plan) -> list[Candidate]:
    """The plan at other micro-batches, as many as a plot can show."""
    from memtune.planning.space import Candidate, divisors
    from memtune_cli.views.plot import spread

    # Finding the divisors of each factor is much faster than those of a large product.
    pairs = product(divisors(plan.micro_batch), divisors(plan.accumulation))
    sizes = spread({one * other for one, other in pairs}, plan.micro_batch, _POINTS)
    plans = [plan.with_micro_batch(size) for size in sizes]
    return [Candidate(other, case.predictor.predict(other)) for other in plans]


def _document(case: PredictionCase, plan: Plan, prediction: Prediction) -> dict[str, Any]:
    cache = cache_of(case, plan)
    generation = {"generation": cache_document(cache)} if cache else {}
    return {
        **json_output.header("estimate", case),
        "estimate": json_output.detail(case, plan, prediction),
        **generation,
    }


def _page(screen: Screen, case: PredictionCase, plan: Plan, prediction: Prediction) -> list[str]:
    unit = unit_of(case.workload.gpu.usable_bytes)
    return [
        *title(screen, case),
        "",
        screen.bold(str(plan)),
        *detail_lines(screen, case, plan, prediction),
        "",
        screen.bold("At the peak"),
        *_components(screen, prediction, unit),
        "",
        screen.bold("Phases"),
        *_phases(screen, prediction, unit),
        "",
        screen.bold("Host memory of a pod"),
        *host_lines(screen, case, plan),
        *generating(screen, case, plan),
        "",
        verdict(screen, case, plan, prediction),
    ]


def _components(screen: Screen, prediction: Prediction, unit: Unit) -> list[str]:
    columns = (
        Column("component", right=False),
        Column(f"{unit.name}B"),
        Column("between", weight=1),
        Column("share", weight=2),
    )
    total_bytes = prediction.device.expected
    rows = [
        (name, unit.number(size.expected, 1), between_bytes(size, unit, 1), f"{size.expected / total_bytes:.0%}")
        for name, size in (*prediction.components, ("all of the GPU", prediction.device))
    ]
    return table(screen, columns, rows)


def _phases(screen: Screen, prediction: Prediction, unit: Unit) -> list[str]:
    phases = prediction.phases
    most = max(size.expected for size in phases.values())
    spreads = {name: between_bytes(size, unit) for name, size in phases.items()}
    room = max(map(len, spreads.values()))
    width = max(6, screen.width - 32 - room)
    lines = []
    for name, size in phases.items():
        bar = ("█" if screen.unicode else "#") * max(1, round(width * size.expected / most))
        painted = screen.paint(bar, "38;5;214" if name == prediction.peak_phase else "38;5;33")
        lines.append(f"  {name:<14}{unit.number(size.expected):>7} {unit.name}B  {spreads[name]:<{room}}  {painted}")
    return lines
