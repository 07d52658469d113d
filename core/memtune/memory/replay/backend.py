"""The interface of training backends in a replay, and torch's DDP as the first of them."""

from __future__ import annotations

from memtune.memory.replay import optimizers
from memtune.memory.replay.replay_case import ReplayCase
from memtune.memory.replay.tape import COMMUNICATION, WEIGHTS, Tape
from memtune.units import MIB

# torch.nn.parallel.distributed: the first bucket is small, so that reducing begins early.
_FIRST_BUCKET_BYTES = MIB
_BUCKET_BYTES = 25 * MIB


class Backend:
    """One rank of DistributedDataParallel, or of an unwrapped model: nothing is sharded."""

    def __init__(self, case: ReplayCase, tape: Tape) -> None:
        self.case = case
        self.tape = tape
        self.gradients: dict[int, int] = {}  # by parameter: the tensor

    def prepare(self) -> None:
        """Allocate what exists before the first step."""
        self.tape.hold_all(self.case.program.weights, WEIGHTS)
        self.tape.hold_all(self.case.program.buffers, WEIGHTS)
        if not self.case.without_reducer:
            # The reducer's copies of the gradients, which a single rank has as well.
            self.tape.hold_all(_buckets(self._gradient_sizes()), COMMUNICATION)

    def _gradient_sizes(self) -> list[int]:
        weights = zip(self.case.trace.parameters, self.case.program.weights, strict=True)
        return [size for parameter, size in weights if parameter.learns]

    def begin(self, is_last: bool) -> None:
        """A micro-batch begins; it may be the last of its step."""

    def enter(self, block: int) -> None:
        """The forward pass enters a block, or the root, which is the whole model."""

    def first(self, block: int) -> None:
        """No input of the entered block needs a gradient: the backward pass ends in it."""

    def leave(self, block: int) -> None:
        """The forward pass leaves a block, or the root."""

    def back(self, block: int) -> None:
        """The backward pass reaches a block, before its recomputation, or the root's outputs."""

    def done(self, block: int) -> None:
        """The backward pass has left a block, whose gradients all exist."""

    def need(self, weight: int) -> None:
        """A module that owns this weight begins, in the forward or the backward pass."""

    def need_again(self, weight: int) -> None:
        """The same during recomputation."""

    def spare(self, weight: int) -> None:
        """A module finishes with its own weight."""

    def module(self, _number: int) -> None:
        """A module without such a weight begins."""

    def gradient(self, parameter: int, tensor: int) -> None:
        """A gradient is computed. From the second micro-batch on it is added to the existing one."""
        if parameter in self.gradients:
            self.tape.free(tensor)
        else:
            self.gradients[parameter] = tensor

    def finish(self) -> None:
        """A micro-batch ends."""

    def step(self, is_first: bool) -> None:
        """Clip, step, and release the gradients."""
        pieces = self.case.pieces(self.case.reached, 1)
        optimizers.clip(self.tape, len(pieces))
        if is_first:
            optimizers.make_states(self.tape, self.case.plan, pieces)
        optimizers.step(self.tape, self.case.plan, pieces)
        self.tape.free(*self.gradients.values())
        self.gradients.clear()


def _buckets(sizes: list[int]) -> list[int]:
    """The sizes of the reducer's buckets, filled from the last weight on."""
    buckets, filled, limit = [], 0, _FIRST_BUCKET_BYTES
    for size in reversed(sizes):
        filled += size
        if filled >= limit:
            buckets.append(filled)
            filled, limit = 0, _BUCKET_BYTES
    return [*buckets, filled] if filled else buckets
