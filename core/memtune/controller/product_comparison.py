"""Compares the GPU products of the nodes for a job that names none, by what is predicted on each."""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import NamedTuple

from memtune.api.gpu import gpu_of
from memtune.controller.context import Context
from memtune.controller.job_knowledge import model_of
from memtune.controller.observation import Node
from memtune.controller.overhead_memory import of_earlier_jobs
from memtune.planning import cost

# The number that a message has room for.
_MOST = 4


class _Offer(NamedTuple):
    product: str
    tokens_per_second: float
    dollars: float | None

    @property
    def place(self) -> tuple[bool, float, float]:
        """Sort key: the cheapest first; then those without a price, the fastest first."""
        return self.dollars is None, self.dollars or inf, -self.tokens_per_second

    @property
    def words(self) -> str:
        costs = "" if self.dollars is None else f" for {cost.dollars(self.dollars)} a million tokens"
        if not self.tokens_per_second:
            return f"{self.product}: no plan is sure to fit"
        return f"{self.product}: {self.tokens_per_second:,.0f} tokens/s{costs}"


def compared(context: Context) -> str:
    """The predicted result of the best plan on each product, the cheapest first; empty if unknown."""
    if gpu_of(context.job):
        return ""  # the job names its GPU, whatever the nodes have
    nodes = defaultdict[str, list[Node]](list)
    for node in context.observed.nodes or ():
        if node.gpu_product:
            nodes[node.gpu_product].append(node)
    try:
        offers = [found for product in sorted(nodes) if (found := _offer(context, product, nodes[product]))]
    except ValueError:
        return ""  # the job describes no workload; another message says why
    offers.sort(key=lambda offer: offer.place)
    others = len(offers) - _MOST
    return "; ".join([*(offer.words for offer in offers[:_MOST]), *([f"and {others} more"] if others > 0 else [])])


def _offer(context: Context, product: str, nodes: list[Node]) -> _Offer | None:
    """The prediction for a product; None if its GPU or the model is unknown."""
    model = model_of(context.job, context.status, nodes, context.trace, of_earlier_jobs(context))
    if not model.is_known or not model.is_gpu_named:
        return None
    fitting = model.ranking.fitting
    speed = fitting[0].prediction.tokens_per_second.expected if fitting else 0.0
    price = _price(context, product)
    return _Offer(product, speed, cost.per_million_tokens(price, context.world, speed) if price else None)


def _price(context: Context, product: str) -> float | None:
    """The job's price, else the product's, which is for a whole GPU."""
    resources = context.job.spec.resources
    if resources.gpu_hour_price is not None or resources.is_part:
        return resources.gpu_hour_price
    return context.observed.gpu_hour_prices.get(product)
