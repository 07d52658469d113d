"""Converts a traced model's replay to terms: what it holds at the peak of each part of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memtune.memory.formulas.logits_and_buffers import save_terms
from memtune.memory.formulas.recipe import Recipe
from memtune.memory.formulas.shape import Shape
from memtune.memory.formulas.terms import BACKWARD, EVALUATION, FORWARD, INIT, SAVE, STEP, Term

if TYPE_CHECKING:
    from memtune.memory.replay.replays import Footprint

_PHASES = {"init": INIT, "forward": FORWARD, "backward": BACKWARD, "step": STEP}
# The component of the formulas whose trust and correction apply to a kind of the replay.
_NAMES = {"communication": "buckets", "temporaries": "activations"}
_FORMULA = "{:,} B of {} at the peak of {}"
_EVALUATION = "{:,} B of a forward pass of {} rows without gradients"
# The kinds of memory that a step leaves behind for an evaluation.
_RESIDENT = ("weights", "optimizer states", "communication")
_IN_STEP = {"temporaries": "step transients"}


def traced_terms(footprint: Footprint) -> list[Term]:
    """The bytes of each kind in each phase."""
    return [
        Term(_name(kind, phase), size, (_PHASES[phase],), _FORMULA, (size, kind, phase), "replay of the trace")
        for phase, kinds in footprint.peaks.items()
        for kind, size in kinds.items()
        if size
    ]


def traced_evaluation_terms(footprint: Footprint, rows: int, pass_bytes: int) -> list[Term]:
    """An evaluation batch: what stays between steps, and a forward pass that keeps nothing."""
    size = Term("evaluation", pass_bytes, (EVALUATION,), _EVALUATION, (pass_bytes, rows), "the trace's forward pass")
    return [*_resident_terms(footprint, EVALUATION), size]


def traced_save_terms(footprint: Footprint, shape: Shape, recipe: Recipe) -> list[Term]:
    """The memory that stays between steps, and the memory that saving gathers."""
    gathered = save_terms(shape, recipe)
    return [*_resident_terms(footprint, SAVE), *gathered] if gathered else []


def _resident_terms(footprint: Footprint, phase: int) -> list[Term]:
    kinds = footprint.peaks["forward"]
    return [
        Term(
            _name(kind, "forward"),
            kinds[kind],
            (phase,),
            _FORMULA,
            (kinds[kind], kind, "forward"),
            "replay of the trace",
        )
        for kind in _RESIDENT
        if kinds[kind]
    ]


def _name(kind: str, phase: str) -> str:
    return (_IN_STEP if phase == "step" else _NAMES).get(kind, _NAMES.get(kind, kind))
