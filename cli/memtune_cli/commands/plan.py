"""`memtune plan JOB.yaml`: ranks the plans that fit by predicted speed and shows where the memory goes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from memtune.memory.prediction import Prediction
from memtune.planning.cost import dollars
from memtune.planning.space import Candidate, Dropped, Ranking
from memtune.plans.plan import Plan
from memtune.units import unit_of
from memtune_cli.errors import InputError
from memtune_cli.input.job_file import read_cases
from memtune_cli.input.prediction_case import PredictionCase
from memtune_cli.views import json_output
from memtune_cli.views.kv_cache import cache_document, cache_of, generating
from memtune_cli.views.plan_sections import detail_lines, title
from memtune_cli.views.render import Column, between, between_bytes, likely, seconds, table, wrapped
from memtune_cli.views.screen import Screen, stdout_screen

_TOP = 10
_UNFIT_SHOWN = 6
_SPEED_COLUMNS = (Column("step", weight=3), Column("tokens/s"), Column("between", weight=5))
_COST_COLUMN = Column("1M tokens")


def run(arguments: argparse.Namespace) -> int:
    """Rank all plans of a job and show the best; with several GPUs, the best on each."""
    cases = read_cases(arguments.job, arguments.gpu, arguments.gpu_hour_price or {})
    if len(cases) > 1:
        from memtune_cli.commands.compare import compare

        return compare(arguments, cases)
    case = cases[0]
    ranking = case.ranking()
    chosen = choose(ranking)
    advice = [] if ranking.fitting else _advice(case, ranking)
    if arguments.plot:
        from memtune_cli.views.plot import draw

        everything: list[Candidate | Dropped] = [*ranking.fitting, *ranking.uncertain, *ranking.dropped]
        draw(arguments.plot, case, chosen.plan, [Candidate(c.plan, c.prediction) for c in everything])
    drawn = _timeline(arguments, case, chosen.plan)
    if arguments.format == "table":
        screen = stdout_screen()
        lines = [*_page(screen, case, ranking, advice, arguments.top or _TOP), *_section(screen, "Timeline", drawn)]
        print(screen.plain("\n".join(lines)))
    else:
        print(json_output.dump(_document(case, ranking, advice), arguments.format))
    return 0 if ranking.fitting else 1


def _timeline(arguments: argparse.Namespace, case: PredictionCase, plan: Plan) -> list[str]:
    if not arguments.timeline:
        if arguments.trace:
            raise InputError("--trace: a trace is for the picture of a step; give --timeline FILE with it")
        return []
    from memtune_cli.commands.plan_timeline import draw

    return [draw(arguments.timeline, case, plan, arguments.trace)]


def choose(ranking: Ranking) -> Candidate | Dropped:
    """The best plan that fits, else the one that needs the least memory."""
    return ranking.fitting[0] if ranking.fitting else ranking.likeliest


def _advice(case: PredictionCase, ranking: Ranking) -> list[str]:
    from memtune.memory.predictor import Predictor
    from memtune.planning.advice import advise

    return advise(
        case.workload, Predictor, ranking.likeliest.plan, case.headroom, case.space, is_fixed=case.fixed is not None
    )


def _document(case: PredictionCase, ranking: Ranking, advice: list[str]) -> dict[str, Any]:
    chosen = choose(ranking)
    cache = cache_of(case, chosen.plan)
    return {
        **json_output.header("plan", case),
        "chosen": json_output.detail(case, chosen.plan, chosen.prediction),
        "fitting": json_output.briefs(case, ranking.fitting),
        "uncertain": json_output.briefs(case, ranking.uncertain),
        "dropped": json_output.briefs(case, ranking.dropped),
        "refused": case.refusals(),
        "advice": advice,
        **({"generation": cache_document(cache)} if cache else {}),
    }


def _page(screen: Screen, case: PredictionCase, ranking: Ranking, advice: list[str], top: int) -> list[str]:
    lines = [*title(screen, case), ""]
    if ranking.fitting:
        lines += _candidates(screen, case, "Plans that fit", ranking.fitting, top)
    if ranking.uncertain:
        heading = "Plans that may fit: only a probe can tell"
        lines += _candidates(screen, case, heading, ranking.uncertain, top if not ranking.fitting else 3)
    chosen = choose(ranking)
    unsure = "No plan is sure to fit" if ranking.uncertain else "No plan fits"
    word = "Chosen" if ranking.fitting else f"{unsure}. Smallest"
    lines += [screen.bold(f"{word}: {chosen.plan}"), *detail_lines(screen, case, chosen.plan, chosen.prediction)]
    lines += generating(screen, case, chosen.plan)
    if unfit := _unfit(ranking):
        lines += ["", screen.bold("Plans that do not fit"), *_unfit_lines(screen, unfit)]
    return [*lines, *_section(screen, "Not tried", case.refusals()), *_section(screen, "What would help", advice)]


def _section(screen: Screen, heading: str, sentences: list[str]) -> list[str]:
    lines = [line for sentence in sentences for line in wrapped(screen, f"  {sentence}", 4)]
    return ["", screen.bold(heading), *lines] if lines else []


def _candidates(
    screen: Screen, case: PredictionCase, heading: str, candidates: Sequence[Candidate | Dropped], top: int
) -> list[str]:
    columns = [
        Column("#"),
        Column("plan", right=False),
        Column(f"peak {unit_of(case.workload.gpu.usable_bytes).name}B"),
        Column("between", weight=2),
        Column("needed", weight=1),
        Column("fits", weight=1),
        *(() if case.workload.virtual else _SPEED_COLUMNS),
        *((_COST_COLUMN,) if case.gpu_hour_price is not None else ()),
    ]
    rows = [_row(case, number, candidate) for number, candidate in enumerate(candidates[:top], start=1)]
    left = len(candidates) - len(rows)
    more = [screen.dim(f"  … and {left} more; --top {len(candidates)} shows all")] if left else []
    return [screen.bold(heading), *table(screen, columns, rows), *more, ""]


def _row(case: PredictionCase, number: int, candidate: Candidate | Dropped) -> tuple[str, ...]:
    prediction, unit = candidate.prediction, unit_of(case.workload.gpu.usable_bytes)
    return (
        str(number),
        str(candidate.plan),
        unit.number(prediction.device.expected),
        between_bytes(prediction.device, unit),
        unit.number(prediction.needed.expected),
        likely(case.fit_probability(prediction)),
        *(() if case.workload.virtual else _speed(prediction)),
        *(_cost(case, prediction) if case.gpu_hour_price is not None else ()),
    )


def _speed(prediction: Prediction) -> tuple[str, ...]:
    return (
        seconds(prediction.step_seconds.expected),
        f"{prediction.tokens_per_second.expected:,.0f}",
        between(prediction.tokens_per_second, digits=0),
    )


def _cost(case: PredictionCase, prediction: Prediction) -> tuple[str, ...]:
    found = case.cost(prediction)
    return (dollars(found.expected) if found else "",)


def _family(plan: Plan) -> tuple[object, ...]:
    return plan.precision, plan.sharding, plan.checkpointing, plan.offload


def _unfit(ranking: Ranking) -> list[Dropped]:
    """The smallest plan that does not fit of each family (plans that differ only in the micro-batch)."""
    smallest: dict[tuple[object, ...], Dropped] = {}
    for dropped in ranking.dropped:
        smallest.setdefault(_family(dropped.plan), dropped)
    return list(smallest.values())


def _unfit_lines(screen: Screen, unfit: list[Dropped]) -> list[str]:
    shown = unfit[:_UNFIT_SHOWN]
    width = max(len(str(dropped.plan)) for dropped in shown)
    sentences = [f"  {str(dropped.plan).ljust(width)}  {dropped.reason}" for dropped in shown]
    lines = [line for sentence in sentences for line in wrapped(screen, sentence, 4)]
    left = len(unfit) - len(shown)
    families = "family" if left == 1 else "families"
    more = [screen.dim(f"  … and {left} more {families}; --format json has all")] if left else []
    return lines + more
