"""The cost of a million tokens, beside the speeds of the status; `product_comparison` has what a price decides."""

from __future__ import annotations

from typing import TypeVar

from memtune.api.status import PlanStatus, PredictionStatus, Status
from memtune.controller.context import Context
from memtune.controller.records import is_over
from memtune.planning import cost

_Speed = TypeVar("_Speed", PlanStatus, PredictionStatus)


def priced(context: Context, read: Status) -> Context:
    """Write the current price and what each plan costs at it; ``read`` is the status as it was."""
    price = _price(context, read)
    changes = {
        "gpu_hour_price": price,
        "prediction": _with_cost(context.status.prediction, price, context.world),
        "plan": _with_cost(context.status.plan, price, context.world),
    }
    return context.having(**changes)


def _with_cost(of: _Speed | None, price: float | None, gpus: int) -> _Speed | None:
    found = cost.per_million_tokens(price, gpus, of.tokens_per_second) if of and price else None
    return of.model_copy(update={"cost_per_million_tokens": found}) if of else None


def _price(context: Context, read: Status) -> float | None:
    """The job's price, else its product's; an ended job keeps its last price."""
    resources = context.job.spec.resources
    if resources.device == "virtual":
        return None  # CPUs set its speed, and are not rented as a GPU
    if resources.gpu_hour_price is not None:
        return resources.gpu_hour_price
    if is_over(read):
        return read.gpu_hour_price
    if resources.is_part:
        return None  # prices are for whole GPUs
    return context.observed.gpu_hour_prices.get(resources.gpu_product or context.status.gpu_product)
