"""FSDP2 on one rank in a replay: permanent shards, and units that are gathered, used and reduced.

Read in torch/distributed/fsdp/_fully_shard (_fsdp_param_group.py, _fsdp_collectives.py, _fsdp_state.py). A unit is a
repeated block, or the root, which holds the rest; gathering and reducing run in streams of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from memtune.memory.replay import optimizers
from memtune.memory.replay.backend import Backend
from memtune.memory.replay.replay_case import ReplayCase, shard
from memtune.memory.replay.tape import COMMUNICATION, GATHER, GRADIENTS, NOTHING, REDUCE, WEIGHTS, Tape
from memtune.plans.knobs import GradientDtype, Sharding
from memtune.wire.trace import ROOT, Parameter


class _Unit:
    """The weights that are gathered together, and their current tensors."""

    def __init__(self, parameters: Sequence[Parameter], shards: int, compute_bytes: int) -> None:
        # Shards are as long as the first one, and so is each gathered weight (_init_all_gather_outputs).
        self.whole_sizes = [compute_bytes * shards * shard(each, shards) for each in parameters]
        self.gathered_bytes = sum(self.whole_sizes)
        self.whole: list[int] = []
        self.arriving = NOTHING
        self.gradients: list[int] = []
        self.reduced_elements = 0  # of weights that the backward pass has reached
        self.reduced = NOTHING
        self.places: list[int] = []  # the places of its forward passes in the order, until the backward pass
        self.is_first = False


class Fsdp(Backend):
    """``fully_shard`` on each block and on the root."""

    def __init__(self, case: ReplayCase, tape: Tape) -> None:
        super().__init__(case, tape)
        trace, plan = case.trace, case.plan
        self._keeps = plan.sharding is Sharding.FSDP_SHARD_GRAD_OP
        self._offloads = case.plan.offloads_states
        self._reduce_bytes = 4 if plan.gradient_dtype is GradientDtype.FP32 else case.plan.compute_bytes
        self._units = {
            number: _Unit(
                [each for each in trace.parameters if each.block == number], case.shards, case.plan.compute_bytes
            )
            for number in (*range(trace.blocks), ROOT)
        }
        self._order: list[int] = []  # units as their forward passes ended
        self._is_backward = False
        self._last_gathered = NOTHING
        self._reducing = NOTHING

    def prepare(self) -> None:
        """Trainable shards are fp32; frozen ones are in the precision in which they are used."""
        self.tape.hold_all(self.case.program.buffers, WEIGHTS)
        if not self._offloads:
            self.tape.hold_all(self._shard_sizes(), WEIGHTS)

    def _shard_sizes(self) -> list[int]:
        frozen = self.case.plan.compute_bytes
        return [(4 if p.learns else frozen) * shard(p, self.case.shards) for p in self.case.trace.parameters]

    def begin(self, is_last: bool) -> None:
        """No forward pass has ended yet."""
        self._order.clear()
        self._is_backward = False
        for unit in self._units.values():
            unit.places.clear()
            unit.is_first = False

    def enter(self, block: int) -> None:
        """Gather the unit. The previous unit's gather buffer is freed when this one is copied (wait_for_unshard)."""
        unit = self._units[block]
        if unit.whole:
            return
        self._gather(unit)
        unit.whole = self.tape.hold_all(unit.whole_sizes, COMMUNICATION)
        self.tape.free(self._last_gathered)
        self._last_gathered = unit.arriving
        unit.arriving = NOTHING

    def first(self, block: int) -> None:
        """No gradient of an input will show that the backward pass has left the unit."""
        self._units[block].is_first = True

    def leave(self, block: int) -> None:
        """The forward pass of the unit is over; an external loss is computed without the root's weights."""
        if self._is_backward:
            return  # the model itself has run it again
        unit = self._units[block]
        unit.places.append(len(self._order))
        self._order.append(block)
        if not self._keeps:
            self._reshard(unit)
        if block == ROOT:
            self.tape.free(self._last_gathered)
            self._last_gathered = NOTHING

    def back(self, block: int) -> None:
        """Gather the unit if not yet prefetched, and prefetch the next."""
        unit = self._units[block]
        if not unit.whole:
            self._gather(unit)
            unit.whole = self.tape.hold_all(unit.whole_sizes, COMMUNICATION)
            self.tape.free(unit.arriving)
            unit.arriving = NOTHING
        self._is_backward = True
        place = unit.places.pop() if unit.places else 0
        if place:
            following = self._units[self._order[place - 1]]
            if not following.whole:
                self._gather(following)

    def done(self, block: int) -> None:
        """Reduce the unit, unless only the end of the backward pass shows that it is done."""
        unit = self._units[block]
        if unit.places or not unit.is_first:
            self._reduce(unit)

    def _reduce(self, unit: _Unit) -> None:
        """Its gradients become shards."""
        self._reshard(unit)
        self.tape.free(self._reducing)
        self._reducing = NOTHING
        if not unit.gradients:
            return
        elements, unit.reduced_elements = unit.reduced_elements, 0
        self._reducing = self.tape.hold(self._reduce_bytes * self.case.shards * elements, COMMUNICATION)
        self.tape.free(*unit.gradients)
        unit.gradients = []
        reduced = self.tape.hold(self._reduce_bytes * elements, GRADIENTS, REDUCE)
        if self._reduce_bytes != 4:
            narrow, reduced = reduced, self.tape.hold(4 * elements, GRADIENTS, REDUCE)
            self.tape.free(narrow)
        if unit.reduced == NOTHING and not self._offloads:
            unit.reduced = reduced
        else:
            self.tape.free(reduced)

    def gradient(self, parameter: int, tensor: int) -> None:
        """Whole gradients wait for the others of their unit."""
        weight = self.case.trace.parameters[parameter]
        unit = self._units[weight.block]
        unit.gradients.append(tensor)
        unit.reduced_elements += shard(weight, self.case.shards)

    def finish(self) -> None:
        """Reduce the root, and units whose inputs needed no gradient (_root_post_backward_...)."""
        for number in (ROOT, *range(self.case.trace.blocks)):
            unit = self._units[number]
            if number == ROOT or unit.whole or unit.gradients:
                self._reduce(unit)
            self.tape.free(unit.arriving)
            unit.arriving = NOTHING
        self.tape.free(self._reducing)
        self._reducing = NOTHING

    def step(self, is_first: bool) -> None:
        """The optimizer sees shards only."""
        if not self._offloads:
            pieces = self.case.pieces(self.case.reached, self.case.shards)
            optimizers.clip(self.tape, len(pieces))
            if is_first:
                optimizers.make_states(self.tape, self.case.plan, pieces)
            optimizers.step(self.tape, self.case.plan, pieces)
        for unit in self._units.values():
            self.tape.free(unit.reduced)
            unit.reduced = NOTHING

    def _gather(self, unit: _Unit) -> None:
        # A single rank copies its weights where they are used (_fsdp_param_group.py, wait_for_unshard).
        if unit.arriving == NOTHING and self.case.shards > 1:
            unit.arriving = self.tape.hold(unit.gathered_bytes, COMMUNICATION, GATHER)

    def _reshard(self, unit: _Unit) -> None:
        self.tape.free(*unit.whole)
        unit.whole = []
