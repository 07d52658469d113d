"""DeepSpeed's ZeRO on one rank: flat buffers from the start, buckets, and a step on flat fp32 gradients.

Read in deepspeed/runtime/zero (stage_1_and_2.py, stage3.py) and runtime/engine.py. Stage 3 gathers weights one by one
and keeps them up to a limit; here they come and go by block, which holds as much at its peak.
"""

from __future__ import annotations

from memtune.deepspeed_config import SUB_GROUP_ELEMENTS
from memtune.knobs import GradientDtype, Offload, Optimizer
from memtune.predict.buffers import ALLREDUCE_ELEMENTS
from memtune.predict.recipe import STATE_BYTES
from memtune.replay import optimizers
from memtune.replay.backend import Backend
from memtune.replay.optimizers import Piece
from memtune.replay.setting import Setting
from memtune.replay.tape import COMMUNICATION, GRADIENTS, NOTHING, STATES, WEIGHTS, Tape

_ROOT = -1


class Zero(Backend):
    """Stages 0 to 3."""

    def __init__(self, setting: Setting, tape: Tape) -> None:
        super().__init__(setting, tape)
        trace, plan = setting.trace, setting.plan
        self._stage = plan.sharding.zero_stage
        self._learning = sum(each.elements for each in setting.learning)
        self._gradient_bytes = 4 if plan.gradient_dtype is GradientDtype.FP32 else setting.compute_bytes
        self._offloads = setting.offloads_states
        self._bucket = NOTHING
        self._partition = NOTHING
        self._block_bytes = {
            number: setting.compute_bytes * sum(each.elements for each in trace.parameters if each.block == number)
            for number in (*range(trace.blocks), _ROOT)
        }
        self._gathered: dict[int, int] = {}

    @property
    def _owned(self) -> int:
        """The elements that this rank steps."""
        return -(-self._learning // self.setting.shards) if self._stage else self._learning

    @property
    def _needs_master(self) -> bool:
        # Stages 1 and 2 step on a clone of their partition even where it is fp32.
        return self.setting.compute_bytes == 2 or self._stage in (1, 2)

    def prepare(self) -> None:
        """Weights, master weights and states: all there when the engine starts."""
        self.tape.hold_all(self.setting.program.buffers, WEIGHTS)
        self._hold_weights()
        if not self._offloads:
            if self._needs_master:
                self.tape.hold(4 * self._owned, STATES)
            self._hold_states()
        if self._stage == 3:
            self._bucket = self.tape.hold(self._gradient_bytes * self.setting.plan.bucket_elements, COMMUNICATION)
            if not self._offloads:
                # grad_partitions_flat_buffer: there as long as the engine.
                self.tape.hold(self._gradient_bytes * self._owned, GRADIENTS)

    def _hold_weights(self) -> None:
        setting = self.setting
        if self._stage < 3:
            frozen = zip(setting.trace.parameters, setting.program.weights, strict=True)
            self.tape.hold(setting.compute_bytes * self._learning, WEIGHTS)
            self.tape.hold_all([size for parameter, size in frozen if not parameter.learns], WEIGHTS)
        elif setting.plan.offload not in (Offload.PARAMETERS, Offload.NVME):
            self.tape.hold(-(-sum(setting.program.weights) // setting.shards), WEIGHTS)

    def _hold_states(self) -> None:
        if self._stage:
            optimizer = self.setting.plan.optimizer
            moments = 2 if optimizer in (Optimizer.ADAMW, Optimizer.ADAMW_8BIT) else 1
            self.tape.hold_all([STATE_BYTES[optimizer] / moments * self._owned] * moments, STATES)
        else:
            optimizers.make_states(self.tape, self.setting.plan, self._pieces())

    def _pieces(self) -> list[Piece]:
        return self.setting.pieces(1)

    def begin(self) -> None:
        """Stage 3 gathers the root; the bucket of the micro-batch before stays until the next is made."""
        if self._stage == 3:
            self._gather(_ROOT)

    def enter(self, block: int) -> None:
        """Gather a block while the one before is there."""
        if self._stage == 3:
            self._gather(block)

    def leave(self, block: int) -> None:
        """Its weights go."""
        self._drop(block)

    def back(self, block: int) -> None:
        """Gather it again."""
        self.enter(block)

    def done(self, block: int) -> None:
        """Its weights go, its gradients are in the bucket."""
        self._drop(block)

    def gradient(self, parameter: int, tensor: int) -> None:
        """Stage 0 keeps whole gradients; the others copy them into the bucket, and what they keep out of it."""
        if self._stage == 0:
            self._keep_whole(parameter, tensor)
            return
        if self._stage < 3 and not self._reduced_once:
            self.tape.free(self._bucket)
            self._bucket = self.tape.hold(self._gradient_bytes * self.setting.plan.bucket_elements, COMMUNICATION)
            self._reduced_once = True
        if self._stage < 3 and self._partition == NOTHING and not self._offloads:
            elements = self._learning if self._stage == 1 else self._owned
            self._partition = self.tape.hold(self._gradient_bytes * elements, GRADIENTS)
        self.tape.free(tensor)

    def _keep_whole(self, parameter: int, tensor: int) -> None:
        super().gradient(parameter, tensor)

    def finish(self) -> None:
        """The root goes as well. Stage 0 reduces flat copies."""
        self._reduced_once = False
        self._drop(_ROOT)
        if self._stage == 0 and self.setting.world > 1:
            elements = min(ALLREDUCE_ELEMENTS, self._learning)
            self.tape.free(self.tape.hold(self._gradient_bytes * elements, COMMUNICATION))

    def step(self, is_first: bool) -> None:
        """A flat fp32 copy of the gradients, at stage 3 of one sub-group at a time."""
        if self._stage < 3:
            self.tape.free(self._bucket)
            self._bucket = NOTHING
        if not self._offloads and self._needs_master:
            elements = min(self._owned, SUB_GROUP_ELEMENTS) if self._stage == 3 else self._owned
            self.tape.pass_by(4 * elements)
        if not self._stage:
            optimizers.step(self.tape, self.setting.plan, self._pieces())
        self.tape.free(self._partition, *self.gradients.values())
        self._partition = NOTHING
        self.gradients.clear()

    _reduced_once = False

    def _gather(self, block: int) -> None:
        if block not in self._gathered:
            self._gathered[block] = self.tape.hold(self._block_bytes[block], COMMUNICATION)

    def _drop(self, block: int) -> None:
        self.tape.free(self._gathered.pop(block, NOTHING))
