"""Selects DeepSpeed's replay backend for a plan: a ZeRO stage, or BF16_Optimizer instead of stage 1."""

from __future__ import annotations

from memtune.memory.formulas.recipe import keeps_whole_fp32, widens_as_it_comes
from memtune.memory.replay import optimizers
from memtune.memory.replay.backend import Backend
from memtune.memory.replay.optimizers import Piece
from memtune.memory.replay.replay_case import ReplayCase
from memtune.memory.replay.tape import GRADIENTS, Tape
from memtune.memory.replay.zero import Sharded, Widening, Zero, Zero12
from memtune.memory.replay.zero3 import Zero3


def deepspeed(case: ReplayCase, tape: Tape) -> Zero:
    """The backend of the plan's stage."""
    if keeps_whole_fp32(case.plan):
        return WholeFp32(case, tape)
    if widens_as_it_comes(case.plan):
        return Widening(case, tape)
    stages: tuple[type[Zero], ...] = (Zero, Zero12, Zero12, Zero3)
    return stages[case.plan.sharding.zero_stage](case, tape)


class WholeFp32(Sharded):
    """BF16_Optimizer, which DeepSpeed uses for stage 1 with fp32 gradients and 16-bit weights.

    Read in deepspeed/runtime/bf16_optimizer.py: there is no bucket, and whole gradients accumulate permanently.
    """

    def __init__(self, case: ReplayCase, tape: Tape) -> None:
        super().__init__(case, tape)
        self._reduces = True

    def prepare(self) -> None:
        """The sums exist from the start."""
        super().prepare()
        self.tape.hold(self._gradient_bytes * self._learning, GRADIENTS)

    def begin(self, is_last: bool) -> None:
        """It reduces once per step."""
        self._reduces = is_last

    def gradient(self, parameter: int, tensor: int) -> None:
        """Computed gradients stay until the step; each backward pass begins by zeroing them."""
        Backend.gradient(self, parameter, tensor)

    def finish(self) -> None:
        """Each gradient is widened for its sum; the sums, one tensor, are narrowed as a whole for the reduction."""
        for parameter in sorted(self.gradients):
            self.tape.pass_by(self._gradient_bytes * self.case.trace.parameters[parameter].elements)
        if self._reduces:
            self.tape.pass_by(self.case.plan.compute_bytes * self._learning)

    def step(self, is_first: bool) -> None:
        """It steps directly on its partition of the sums."""
        if is_first:
            self._make_states()
        optimizers.step(self.tape, self.case.plan, [Piece(self._owned, self._owned, is_in_block=False)])
        self.tape.free(*self.gradients.values())
        self.gradients.clear()
