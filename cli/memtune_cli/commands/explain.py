"""`memtune explain JOB.yaml`: every formula of a prediction with its numbers and its source."""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING, Any

from memtune.memory.prediction import Prediction
from memtune.plans.plan import Plan
from memtune.units import amount, gib, unit_of
from memtune_cli.input.job_file import read_case
from memtune_cli.input.prediction_case import PredictionCase
from memtune_cli.views import json_output
from memtune_cli.views.kv_cache import cache_document, cache_of, generating
from memtune_cli.views.plan_sections import title
from memtune_cli.views.render import wrapped
from memtune_cli.views.screen import Screen, stdout_screen

if TYPE_CHECKING:
    from memtune.memory.formulas.terms import Term

_ROOMY = 80


def run(arguments: argparse.Namespace) -> int:
    """Show the terms of a prediction."""
    case = read_case(arguments.job, arguments.gpu)
    case, plan = case.what_if(arguments.plan) if arguments.plan else (case, _chosen(case))
    terms, prediction = case.predictor.explain(plan), case.predictor.predict(plan)
    if arguments.format == "table":
        screen = stdout_screen()
        print(screen.plain("\n".join(_page(screen, case, plan, terms, prediction))))
    else:
        print(json_output.dump(_document(case, plan, terms, prediction), arguments.format))
    return 0


def _chosen(case: PredictionCase) -> Plan:
    from memtune_cli.commands.plan import choose

    return choose(case.ranking()).plan


def _document(case: PredictionCase, plan: Plan, terms: list[Term], prediction: Prediction) -> dict[str, Any]:
    cache = cache_of(case, plan)
    return {
        **json_output.header("explain", case),
        "plan": str(plan),
        "peakPhase": prediction.peak_phase,
        "terms": [
            {
                "name": term.name,
                "bytes": round(term.bytes),
                "phases": list(term.phase_names),
                "formula": term.formula,
                "source": term.source,
            }
            for term in terms
        ],
        "host": [
            {"name": term.name, "bytes": term.bytes, "formula": term.formula, "source": term.source}
            for term in case.host(plan).terms
        ],
        **({"generation": cache_document(cache)} if cache else {}),
    }


def _page(screen: Screen, case: PredictionCase, plan: Plan, terms: list[Term], prediction: Prediction) -> list[str]:
    unit = unit_of(case.workload.gpu.usable_bytes)
    lines = [
        *title(screen, case),
        "",
        *map(screen.bold, wrapped(screen, f"{plan}: each addend, and the phases it lives in", 2)),
    ]
    for term in terms:
        marker = "*" if prediction.peak_phase in term.phase_names else " "
        size = f"{unit.number(term.bytes, 1)} {unit.name}B"
        lines += _term(screen, f"{marker} {term.name}", size, term.formula, term.source)
        lines += map(screen.dim, _aside(screen, f"in {', '.join(term.phase_names)}"))
    lines += [
        "",
        *wrapped(
            screen,
            f"  * lives in the peak phase, {prediction.peak_phase}. What the allocator rounds and keeps comes on top: "
            f"{amount(prediction.device.expected, case.workload.gpu.usable_bytes)} in all.",
            4,
        ),
        "",
        screen.bold("Host memory of a pod"),
    ]
    for addend in case.host(plan).terms:
        lines += _term(screen, f"  {addend.name}", gib(addend.bytes, 2), addend.formula, addend.source)
    return lines + generating(screen, case, plan)


def _term(screen: Screen, name: str, size: str, formula: str, source: str) -> list[str]:
    first, *rest = _aside(screen, f"= {formula}")
    head = f"{name:<22}{size:>11}"
    # On a narrow screen the formula is below the name.
    shown = [f"{head}  {first.strip()}", *rest] if screen.width >= _ROOMY else [head, first, *rest]
    return [*shown, *map(screen.dim, _aside(screen, source))]


def _aside(screen: Screen, text: str) -> list[str]:
    indent = " " * (35 if screen.width >= _ROOMY else 6)
    return textwrap.wrap(text, screen.width, initial_indent=indent, subsequent_indent=indent)
