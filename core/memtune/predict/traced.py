"""The addends of a traced model: what a replay holds at the peak of each part of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memtune.predict.terms import BACKWARD, FORWARD, INIT, STEP, Term

if TYPE_CHECKING:
    from memtune.replay.traced import Footprint

_PHASES = {"init": INIT, "forward": FORWARD, "backward": BACKWARD, "step": STEP}
# Under what name the kinds of a replay are trusted and corrected: that of the formulas.
_NAMES = {"communication": "buckets", "temporaries": "activations"}
_FORMULA = "{:,} B of {} at the peak of {}"
_IN_STEP = {"temporaries": "step transients"}


def traced_terms(footprint: Footprint) -> list[Term]:
    """The bytes of each kind in each phase."""
    return [
        Term(_name(kind, phase), size, (_PHASES[phase],), _FORMULA, (size, kind, phase), "replay of the trace")
        for phase, kinds in footprint.peaks.items()
        for kind, size in kinds.items()
        if size
    ]


def _name(kind: str, phase: str) -> str:
    return (_IN_STEP if phase == "step" else _NAMES).get(kind, _NAMES.get(kind, kind))
