"""`memtune plan JOB.yaml --gpu A,B,C`: the best plan on each GPU and its cost per million tokens."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from enum import IntEnum
from math import inf
from typing import Any, NamedTuple

from memtune.planning.cost import dollars
from memtune.planning.space import Candidate, Dropped
from memtune.units import Unit, unit_of
from memtune_cli.errors import InputError
from memtune_cli.input.prediction_case import PredictionCase
from memtune_cli.views import json_output
from memtune_cli.views.plan_sections import title_of_several
from memtune_cli.views.render import Column, seconds, table, wrapped
from memtune_cli.views.screen import Screen, stdout_screen

# Options that apply to the plans of a single GPU only.
_OF_ONE_GPU = ("plot", "timeline", "trace", "top")


class Fit(IntEnum):
    """Whether a plan fits, most certain first."""

    SURE = 0
    MAYBE = 1
    NONE = 2


class Offer(NamedTuple):
    """The result for one GPU: the best plan that is sure to fit, else the smallest that may.

    ``reason`` says why no plan is sure to fit.
    """

    case: PredictionCase
    fit: Fit
    best: Candidate | None
    reason: str

    @property
    def cost(self) -> float | None:
        """Dollars per million tokens; None without a price or if no plan fits."""
        found = self.case.cost(self.best.prediction) if self.best else None
        return found.expected if found else None

    @property
    def place(self) -> tuple[bool, bool, Fit, float, float]:
        """The sort key: by cost, then GPUs without a price by speed, then GPUs where no plan fits."""
        speed = self.best.prediction.tokens_per_second.expected if self.best else 0.0
        return self.best is None, self.cost is None, self.fit, self.cost or inf, -speed


def compare(arguments: argparse.Namespace, cases: Sequence[PredictionCase]) -> int:
    """Show the best plan on each GPU; return 0 if a plan is sure to fit on at least one."""
    for name in _OF_ONE_GPU:
        if getattr(arguments, name) is not None:
            raise InputError(
                f"--{name} is for the plans of one GPU, and --gpu names {len(cases)}; leave one of them out"
            )
    offers = sorted(map(_offer, cases), key=lambda offer: offer.place)
    if arguments.format == "table":
        screen = stdout_screen()
        print(screen.plain("\n".join(_page(screen, offers))))
    else:
        print(json_output.dump(_document(offers), arguments.format))
    return 0 if any(offer.fit is Fit.SURE for offer in offers) else 1


def _offer(case: PredictionCase) -> Offer:
    try:
        ranking = case.ranking()
    except InputError as error:
        return Offer(case, Fit.NONE, None, str(error).removeprefix(f"{case.name}: "))
    if ranking.fitting:
        return Offer(case, Fit.SURE, ranking.fitting[0], "")
    if ranking.uncertain:
        likeliest = ranking.likeliest
        return Offer(case, Fit.MAYBE, Candidate(likeliest.plan, likeliest.prediction), _reason(likeliest))
    return Offer(case, Fit.NONE, None, _reason(ranking.likeliest))


def _reason(dropped: Dropped) -> str:
    return f"the smallest plan, {dropped.plan}, {dropped.reason}"


def _document(offers: Sequence[Offer]) -> dict[str, Any]:
    return {
        **json_output.header_of_several("plan", offers[0].case),
        "gpus": [
            {
                **json_output.gpu(offer.case),
                "fits": offer.fit is Fit.SURE,
                "best": json_output.brief(offer.case, offer.best) if offer.best else None,
                **({"reason": offer.reason} if offer.reason else {}),
            }
            for offer in offers
        ],
    }


def _page(screen: Screen, offers: Sequence[Offer]) -> list[str]:
    is_priced = any(offer.case.gpu_hour_price is not None for offer in offers)
    is_timed = not offers[0].case.workload.virtual
    order = ", the cheapest first" if is_priced else ", the fastest first" if is_timed else ""
    unit = unit_of(min(offer.case.workload.gpu.usable_bytes for offer in offers))
    columns = [
        Column("GPU", right=False),
        Column("plan", right=False),
        Column(f"peak {unit.name}B"),
        Column("needed", weight=4),
        Column("of GPU", weight=3),
        *((Column("step", weight=2), Column("tokens/s")) if is_timed else ()),
        *((Column("GPU-hour", weight=1), Column("1M tokens")) if is_priced else ()),
    ]
    rows = [
        (*_memory(offer, unit), *(_speed(offer) if is_timed else ()), *(_money(offer) if is_priced else ()))
        for offer in offers
    ]
    lines = [*title_of_several(screen, offers[0].case), ""]
    lines += [screen.bold(f"The best plan on each GPU{order}"), *table(screen, columns, rows)]
    for fit, heading in ((Fit.MAYBE, "May fit: only a probe can tell"), (Fit.NONE, "No plan fits")):
        reasons = [f"  {offer.case.workload.gpu.name}: {offer.reason}" for offer in offers if offer.fit is fit]
        if reasons:
            lines += ["", screen.bold(heading), *(line for each in reasons for line in wrapped(screen, each, 4))]
    return lines


def _memory(offer: Offer, unit: Unit) -> tuple[str, ...]:
    gpu = offer.case.workload.gpu
    if offer.best is None:
        return gpu.name, "no plan fits", "", "", ""
    prediction = offer.best.prediction
    peak_bytes, needed_bytes = prediction.device.expected, prediction.needed.expected
    doubt = " (may fit)" if offer.fit is Fit.MAYBE else ""
    sizes = unit.number(peak_bytes), unit.number(needed_bytes), f"{peak_bytes / gpu.usable_bytes:.0%}"
    return gpu.name, f"{offer.best.plan}{doubt}", *sizes


def _speed(offer: Offer) -> tuple[str, ...]:
    if offer.best is None:
        return "", ""
    prediction = offer.best.prediction
    return seconds(prediction.step_seconds.expected), f"{prediction.tokens_per_second.expected:,.0f}"


def _money(offer: Offer) -> tuple[str, ...]:
    price, cost = offer.case.gpu_hour_price, offer.cost
    return "" if price is None else dollars(price), "" if cost is None else dollars(cost)
