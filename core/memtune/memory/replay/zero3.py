"""DeepSpeed's ZeRO stage 3 on one rank in a replay: as the other stages, with weights gathered on demand.

Read in deepspeed/runtime/zero (stage3.py, partition_parameters.py) of 0.19.
"""

from __future__ import annotations

from memtune.memory.replay.gathering import Gathering
from memtune.memory.replay.replay_case import ReplayCase
from memtune.memory.replay.tape import COMMUNICATION, GRADIENTS, WEIGHTS, Tape
from memtune.memory.replay.zero import Sharded
from memtune.plans.deepspeed_config import PERSISTENT_ELEMENTS, SUB_GROUP_ELEMENTS
from memtune.wire import trace as events


class Zero3(Sharded):
    """Stage 3: weights are partitioned too, except small ones; bucket and gradients are permanent."""

    def __init__(self, case: ReplayCase, tape: Tape) -> None:
        super().__init__(case, tape)
        parameters, width = case.trace.parameters, case.plan.compute_bytes
        self._small_bytes = width * sum(p.elements for p in parameters if p.elements <= PERSISTENT_ELEMENTS)
        self._holds_weights = not case.plan.offloads_weights
        # A single rank looks at its partition as it is (partition_parameters.py, NoGatherHandle).
        self._copies_weights = case.shards > 1 or not self._holds_weights
        self._gathering = Gathering(case, tape)
        # Weights used outside the module that owns them are assumed to be gathered all the time.
        program = case.program
        needed = {number for code, number in zip(program.codes, program.numbers, strict=True) if code == events.NEED}
        self._strays = [n for n, p in enumerate(parameters) if p.elements > PERSISTENT_ELEMENTS and n not in needed]

    def prepare(self) -> None:
        """The same, plus states and the buffers of the gradients."""
        super().prepare()
        self._make_states()
        self._make_bucket()
        if not self._offloads:
            self.tape.hold(self._gradient_bytes * self._owned, GRADIENTS)
        if self._copies_weights:
            self.tape.hold(self._small_bytes, COMMUNICATION)

    def _hold_weights(self) -> None:
        if self._holds_weights:
            self.tape.hold(-(-sum(self.case.program.weights) // self.case.shards), WEIGHTS)

    def _copies(self) -> list[int]:
        """The rank's part of the copy is widened beside it if gradients are wider than the bucket."""
        kept_bytes = self._gradient_bytes * -(-self._filled // self.case.shards)
        return [*super()._copies(), *([kept_bytes] if self._gradient_bytes > self._bucket_bytes else [])]

    def begin(self, is_last: bool) -> None:
        """Gather weights that no module of their own uses."""
        self._gathering.begin()
        for weight in self._strays:
            self.need(weight)

    def need(self, weight: int) -> None:
        """Gather the weight."""
        if self._is_gathered(weight):
            self._gathering.need(weight)

    def module(self, _number: int) -> None:
        """Prefetch what comes next."""
        if self._copies_weights:
            self._gathering.module()

    def need_again(self, weight: int) -> None:
        """Gather the weight again."""
        if self._is_gathered(weight):
            self._gathering.need_again(weight)

    def spare(self, weight: int) -> None:
        """Release the weight unless it is needed again soon."""
        if self._is_gathered(weight):
            self._gathering.spare(weight)

    def _is_gathered(self, weight: int) -> bool:
        return self._copies_weights and self.case.trace.parameters[weight].elements > PERSISTENT_ELEMENTS

    def finish(self) -> None:
        """Release the rest of the weights, too."""
        super().finish()
        self._gathering.end()

    def step(self, is_first: bool) -> None:
        """Step one sub-group at a time."""
        self.tape.free(*self._widened(min(self._owned, SUB_GROUP_ELEMENTS)))
