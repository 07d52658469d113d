"""The architecture assumed for an unknown model: large enough to be worth all of its GPUs."""

from __future__ import annotations

from memtune.model.architecture import Architecture
from memtune.model.plain import from_facts

# Weights, gradients and states of mixed precision under AdamW (1910.02054, section 3.1).
_STATE_BYTES = 16
# The fraction of total memory that states sharded over all ranks are assumed to take.
_SHARE = 0.25
_LAYERS = 32
_HEADS = 16
# A decoder's block has 12 x width^2 weights (2001.08361, table 1).
_WEIGHTS = 12


def assumed_architecture(usable_bytes: int, world: int) -> Architecture:
    """A decoder of the size that people choose for this many GPUs."""
    parameters = usable_bytes * world * _SHARE / _STATE_BYTES
    width = max(round((parameters / (_WEIGHTS * _LAYERS)) ** 0.5 / _HEADS), 1) * _HEADS
    facts = {"hiddenSize": width, "layers": _LAYERS, "heads": _HEADS, "ffnSize": 4 * width, "vocabSize": width}
    return from_facts(facts, "an assumed model")
