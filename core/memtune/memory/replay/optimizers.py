"""Allocations of an optimizer's step in a replay: permanent states and temporaries.

Read in torch/optim (adamw.py, sgd.py, adafactor.py, _muon.py), in memtune_runner.engine.optimizers for Lion, and in
bitsandbytes (optim/optimizer.py). A tensor of one element takes an allocator block like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memtune.memory.optimizer_bytes import BYTES
from memtune.memory.replay.tape import STATES, TEMPORARIES, Tape
from memtune.plans.knobs import Optimizer
from memtune.plans.plan import Plan

_SCALAR_BYTES = 4
# Newton-Schulz runs in bf16 on a matrix, its square and their product (torch/optim/_muon.py).
_MUON_TEMPORARIES = 3


class Piece(NamedTuple):
    """The part of a weight that this rank steps: its elements, its first dimension, and whether it is in a block."""

    elements: int
    rows: int
    is_in_block: bool

    @property
    def columns(self) -> int:
        """The elements of one row."""
        return self.elements // max(self.rows, 1)

    @property
    def is_matrix(self) -> bool:
        """Whether it has more than one dimension."""
        return self.columns > 1

    @property
    def is_blocks_matrix(self) -> bool:
        """Whether it is a matrix in a block, which Muon steps."""
        return self.is_matrix and self.is_in_block


def clip(tape: Tape, count: int) -> None:
    """The gradient norms: one of each, their stack, and the total (torch/nn/utils/clip_grad.py)."""
    norms = tape.hold_all([_SCALAR_BYTES] * count, TEMPORARIES)
    total = tape.hold_all([_SCALAR_BYTES * count, _SCALAR_BYTES], TEMPORARIES)
    tape.free(*norms, *total)


def make_states(tape: Tape, plan: Plan, pieces: Sequence[Piece]) -> None:
    """The states of every weight, in the order of the weights."""
    for piece in pieces:
        tape.hold_all(_states(plan, piece), STATES)


def step(tape: Tape, plan: Plan, pieces: Sequence[Piece]) -> None:
    """The temporaries of a step."""
    for piece in pieces:
        tape.pass_by(*_temporaries(plan.optimizer, piece))
    if not plan.fused_optimizer:
        # The square roots of all second moments at once; Muon's AdamW steps after it.
        tape.pass_by(*[4 * piece.elements for piece in pieces if _is_adamws(plan.optimizer, piece)])


def _is_adamws(optimizer: Optimizer, piece: Piece) -> bool:
    """Whether torch's AdamW steps it: with Muon, all but the matrices in blocks."""
    return optimizer is Optimizer.ADAMW or (optimizer is Optimizer.MUON and not piece.is_blocks_matrix)


def _states(plan: Plan, piece: Piece) -> list[float]:
    moment = 4 * piece.elements
    match plan.optimizer:
        case Optimizer.ADAMW:
            return [*([_SCALAR_BYTES] if plan.fused_optimizer else []), moment, moment]
        case Optimizer.MUON:
            return [moment] if piece.is_blocks_matrix else [_SCALAR_BYTES, moment, moment]
        case Optimizer.ADAFACTOR:
            return [4 * piece.rows, 4 * piece.columns] if piece.is_matrix else [moment]
        case Optimizer.ADAMW_8BIT:
            half = BYTES[Optimizer.ADAMW_8BIT].states / 2
            return [half * piece.elements, half * piece.elements]
        case _:
            return [moment]


def _temporaries(optimizer: Optimizer, piece: Piece) -> list[float]:
    whole = 4 * piece.elements
    if optimizer is Optimizer.LION:
        return [whole]
    if optimizer is Optimizer.ADAFACTOR:
        return [whole, whole]
    if optimizer is Optimizer.MUON and piece.is_blocks_matrix:
        return [whole, *[2 * piece.elements] * _MUON_TEMPORARIES]
    return []
