"""Traces the models of the GPU benchmark on a CPU as a job's factory is, with the measured code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from gpu_measure import WithLoss, loss
from gpu_pairs import LENGTH, MODELS, Pair
from torch import nn

from memtune.memory.replay import numerics_of
from memtune.memory.traced_model import TracedModel
from memtune.model.architecture import Architecture
from memtune.plans.plan import Plan
from memtune_runner.engine.decoder import Decoder
from memtune_runner.tracing import trace

Subject = tuple[nn.Module, Callable[[int], torch.Tensor], Callable[[Any, torch.Tensor], torch.Tensor]]


def traced(pairs: Iterable[Pair], length: int = LENGTH) -> dict[str, TracedModel]:
    """The model of every pair by its name, in all numerics that its plans need."""
    numerics: dict[str, set[str]] = {}
    for pair in pairs:
        numerics.setdefault(pair.model, set()).add(numerics_of(Plan.parse(pair.plan)))
    return {name: traced_model(name, MODELS[name], length, ways) for name, ways in numerics.items()}


def traced_model(name: str, facts: Architecture, length: int, numerics: Iterable[str]) -> TracedModel:
    """One model, cached by name."""
    arguments = {"facts": facts}
    return TracedModel(
        name, trace("gpu_trace:build", sequence_length=length, numerics=sorted(numerics), arguments=arguments)
    )


def build(sequence_length: int, facts: Architecture) -> Subject:
    """The factory."""
    return WithLoss(Decoder(facts)), lambda rows: torch.zeros(rows, sequence_length, dtype=torch.long), loss
