"""The KV cache of jobs that generate while they train, and the memory it leaves for the optimizer."""

from __future__ import annotations

from typing import Any, NamedTuple

from memtune.memory.kv_cache import Generation, KvBudget, kv_budget
from memtune.model.architecture import Architecture, Kind
from memtune.plans.plan import Plan
from memtune.units import MIB, gib
from memtune_cli.input.prediction_case import PredictionCase
from memtune_cli.views.render import wrapped
from memtune_cli.views.screen import Screen

# Components that stay on the GPU during generation, even if gradients and optimizer states are offloaded.
_RESIDENT = ("weights", "workspace", "context", "nccl")


class Cache(NamedTuple):
    """The KV cache of a plan, and the memory that is always on the GPU."""

    generation: Generation
    resident_bytes: float
    budget: KvBudget


def cache_of(case: PredictionCase, plan: Plan) -> Cache | None:
    """The cache; None if the job does not generate."""
    workload = case.workload
    model = workload.model
    if not workload.evaluation.generates or not isinstance(model, Architecture):
        return None
    source_tokens = workload.sequence_length if model.kind is Kind.ENCODER_DECODER else 0
    target_tokens = workload.target_length or workload.sequence_length
    generation = workload.evaluation.generation(target_tokens, source_tokens)
    resident = sum(term.bytes for term in case.predictor.explain(plan) if term.name in _RESIDENT)
    free_bytes = workload.gpu.usable_bytes - resident
    return Cache(generation, resident, kv_budget(model, generation, free_bytes))


def generating(screen: Screen, case: PredictionCase, plan: Plan) -> list[str]:
    """The page section; empty if the job does not generate."""
    cache = cache_of(case, plan)
    return ["", screen.bold("While it generates"), *_lines(screen, cache)] if cache else []


def _lines(screen: Screen, cache: Cache) -> list[str]:
    generation, budget = cache.generation, cache.budget
    pages = f"{budget.pages_per_sequence} pages of {generation.page_tokens} tokens x {budget.page_bytes / MIB:.3g} MiB"
    rows = [
        ("weights and context", cache.resident_bytes, "what stays while it generates"),
        ("KV cache", budget.needed_bytes, f"{generation.sequences} sequences x {pages}"),
        ("  of it wasted", budget.wasted_bytes, "the unfilled ends of last pages"),
        ("for the optimizer", budget.left_bytes, "what is left for gradients, optimizer states and activations"),
    ]
    lines = [f"  {name:<22}{gib(size):>11}  = {formula}" for name, size, formula in rows]
    lines.append(f"  Room for {budget.fitting_sequences} such sequences if all the rest left the GPU.")
    return [shown for line in lines for shown in wrapped(screen, line, 37)]


def cache_document(cache: Cache) -> dict[str, Any]:
    """The cache for JSON output."""
    budget = cache.budget
    return {
        "residentBytes": round(cache.resident_bytes),
        "kvCacheBytes": round(budget.needed_bytes),
        "wastedBytes": round(budget.wasted_bytes),
        "leftBytes": round(budget.left_bytes),
        "pages": budget.pages,
        "pageBytes": round(budget.page_bytes),
        "fittingSequences": budget.fitting_sequences,
    }
