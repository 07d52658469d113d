"""Which GPU product is the cheapest for a job that names none, by what a million tokens cost.

With the objective cost such a job takes the cheapest product of its nodes; else it waits until its user names one.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import NamedTuple

from memtune.api.workload import gpu_of
from memtune.controller.context import Context
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.observation import Node
from memtune.controller.stored_measurements import overhead_of_earlier_jobs
from memtune.planning import cost
from memtune.units import counted

# The number that a message has room for.
_MOST = 4


class Offer(NamedTuple):
    """Predicted speed and cost on a GPU product, by the best plan that is sure to fit, else by the smallest that may.

    The speed is 0 where no plan fits.
    """

    product: str
    is_sure: bool
    tokens_per_second: float
    dollars: float | None

    @property
    def place(self) -> tuple[bool, bool, float, float]:
        """Sort key: the cheapest that is sure first, then the cheapest that may fit; those without a price last."""
        return self.dollars is None, not self.is_sure, self.dollars or inf, -self.tokens_per_second

    @property
    def words(self) -> str:
        costs = "" if self.dollars is None else f" for {cost.dollars(self.dollars)} a million tokens"
        if not self.tokens_per_second:
            return f"{self.product}: no plan fits"
        return f"{self.product}: {self.tokens_per_second:,.0f} tokens/s{costs}{'' if self.is_sure else ', if it fits'}"


def compared(context: Context) -> str:
    """The predicted result of the best plan on each product, the cheapest first; empty if unknown."""
    if gpu_of(context.job):
        return ""  # the job declares its memory, so the nodes do not matter
    try:
        found = offers(context)
    except (ValueError, ArithmeticError):
        return ""  # the job describes no workload; another message says why
    others = len(found) - _MOST
    return "; ".join([*(offer.words for offer in found[:_MOST]), *([f"and {others} more"] if others > 0 else [])])


def cheapest(context: Context) -> Offer | None:
    """The product with the cheapest tokens; None where no plan fits on any that has a price."""
    able = {product for product, nodes in _products(context).items() if _is_enough(context, nodes)}
    return next((offer for offer in offers(context) if offer.dollars is not None and offer.product in able), None)


def unknown_cost(context: Context) -> str:
    """Why no product can be chosen by its cost, in one sentence."""
    if context.observed.nodes is None:
        return "tuning.objectives has cost, and no nodes can be seen to choose from: let the operator read nodes"
    found = offers(context)
    if not found:
        return "tuning.objectives has cost, and no node that may run the job has a GPU product that MemTune knows"
    products = ", ".join(offer.product for offer in found[:_MOST])
    if not any(_is_enough(context, nodes) for nodes in _products(context).values()):
        return f"tuning.objectives has cost, and no product has {_asked(context)}: there are {products}"
    if all(context.gpu_hour_price(offer.product) is None for offer in found):
        advice = "set the operator's gpuHourPrices or resources.gpuHourPrice"
        return f"tuning.objectives has cost, and there is no price of {products}: {advice}"
    return f"tuning.objectives has cost, and no plan fits where the price is known: {compared(context)}"


def offers(context: Context) -> list[Offer]:
    """The predictions for each product, the cheapest first; raises ValueError where no workload is described."""
    nodes = _products(context)
    found = [offer for product in sorted(nodes) if (offer := _offer(context, product, nodes[product]))]
    return sorted(found, key=lambda offer: offer.place)


def _products(context: Context) -> dict[str, list[Node]]:
    nodes = defaultdict[str, list[Node]](list)
    for node in context.observed.nodes or ():
        if node.gpu_product:
            nodes[node.gpu_product].append(node)
    return nodes


def _is_enough(context: Context, nodes: list[Node]) -> bool:
    """Whether the job's pods would fit on these nodes, were they free: the choice of a product is not taken back."""
    resources = context.job.spec.resources
    return sum(not node.gpus or node.gpus >= resources.gpus_per_node for node in nodes) >= resources.nodes


def _asked(context: Context) -> str:
    resources = context.job.spec.resources
    return f"{counted(resources.nodes, 'node')} of {counted(resources.gpus_per_node, 'GPU')}"


def _offer(context: Context, product: str, nodes: list[Node]) -> Offer | None:
    """The prediction for a product; None where its GPU or the model is unknown."""
    knowledge = knowledge_of(context.job, context.status, nodes, context.trace, overhead_of_earlier_jobs(context))
    if not knowledge.is_known or not knowledge.is_gpu_named:
        return None
    ranking, price, speed = knowledge.ranking, context.gpu_hour_price(product), 0.0
    if ranking.fitting or ranking.uncertain:
        best = ranking.fitting[0] if ranking.fitting else ranking.likeliest
        speed = best.prediction.tokens_per_second.expected
    return Offer(
        product, bool(ranking.fitting), speed, cost.per_million_tokens(price, context.world, speed) if price else None
    )
