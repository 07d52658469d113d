"""Knob importance: the share of the variance between a job's plans that each knob explains. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import fmean
from typing import NamedTuple

from memtune.planning.parameters import StudyParameters
from memtune_cli.views.candidates import KnownPlan


class Importance(NamedTuple):
    """One knob: its choices, and the shares of memory and speed variance that it explains alone."""

    knob: str
    choices: tuple[str, ...]
    memory: float
    speed: float


def importances(plans: Sequence[KnownPlan]) -> list[Importance]:
    """The open knobs of the job, most important for memory first."""
    parameters = StudyParameters(tuple(each.plan for each in plans))
    found = []
    for knob, choices in parameters.choices.items():
        chosen = [getattr(each.plan, knob) for each in plans]
        memory = explained(chosen, [each.device_bytes for each in plans])
        speed = explained(chosen, [each.tokens_per_second for each in plans])
        found.append(Importance(knob, tuple(map(str, choices)), memory, speed))
    return sorted(found, key=lambda each: -each.memory)


def explained(choices: Sequence[Hashable], values: Sequence[float]) -> float:
    """The variance of the choices' means over the variance of all values; 0 if all values are equal."""
    mean = fmean(values)
    total = sum((value - mean) ** 2 for value in values)
    groups: dict[Hashable, list[float]] = {}
    for choice, value in zip(choices, values, strict=True):
        groups.setdefault(choice, []).append(value)
    between = sum(len(group) * (fmean(group) - mean) ** 2 for group in groups.values())
    return between / total if total else 0.0
