"""DeepSpeed's ZeRO stages 0 to 2 on one rank in a replay: flat buffers, a bucket, and a flat fp32 step.

Read in deepspeed/runtime/zero (stage_1_and_2.py, stage3.py) and runtime/engine.py of 0.19.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from memtune.memory.formulas.logits_and_buffers import ALLREDUCE_ELEMENTS
from memtune.memory.optimizer_bytes import BYTES
from memtune.memory.replay import optimizers
from memtune.memory.replay.backend import Backend
from memtune.memory.replay.replay_case import ReplayCase
from memtune.memory.replay.tape import COMMUNICATION, GRADIENTS, NOTHING, STATES, TEMPORARIES, WEIGHTS, Tape
from memtune.plans.knobs import GradientDtype, Optimizer

_NORM_BYTES = 8  # of an element: norms are computed in fp64 (zero/utils.py, get_norm_dtype)


class Zero(Backend):
    """Stage 0, and what all stages have in common."""

    def __init__(self, case: ReplayCase, tape: Tape) -> None:
        super().__init__(case, tape)
        fp32 = case.plan.gradient_dtype is GradientDtype.FP32
        self._gradient_bytes = 4 if fp32 else case.plan.compute_bytes
        self._learning = sum(each.elements for each in case.learning)
        self._has_master = case.plan.compute_bytes == 2

    def prepare(self) -> None:
        """Weights, master weights and states all exist when the engine starts."""
        self.tape.hold_all(self.case.program.buffers, WEIGHTS)
        self._hold_weights()
        if self._has_master:
            self.tape.hold_all([4 * each.elements for each in self.case.learning], STATES)
        optimizers.make_states(self.tape, self.case.plan, self.case.pieces(self.case.learning, 1))

    def _hold_weights(self) -> None:
        """One flat tensor of what learns; the rest as it was."""
        self.tape.hold(self.case.plan.compute_bytes * self._learning, WEIGHTS)
        weights = zip(self.case.trace.parameters, self.case.program.weights, strict=True)
        self.tape.hold_all([size for parameter, size in weights if not parameter.learns], WEIGHTS)

    def step(self, is_first: bool) -> None:
        """Gradients are reduced as flat copies, then copied to fp32 for the step; a weight without one gets zeros."""
        zeros = self._zeros(self.case.unreached, self.case.plan.compute_bytes)
        if self.case.world > 1:
            self.tape.pass_by(self._gradient_bytes * min(ALLREDUCE_ELEMENTS, self._learning))
        if self._has_master:
            self.tape.pass_by(4 * self._learning)
        optimizers.step(self.tape, self.case.plan, self.case.pieces(self.case.learning, 1))
        self.tape.free(*self.gradients.values(), *zeros)
        self.gradients.clear()

    def _zeros(self, parameters: Sequence[int], width: int) -> list[int]:
        sizes = [width * self.case.trace.parameters[each].elements for each in parameters]
        return self.tape.hold_all(sizes, GRADIENTS)


class Sharded(Zero):
    """Stages 1 to 3: gradients go through a bucket into the rank's own partition."""

    def __init__(self, case: ReplayCase, tape: Tape) -> None:
        super().__init__(case, tape)
        # They step on a clone of the partition even if it is fp32: stage 3 compares a device with a device name.
        self._has_master = True
        self._owned = -(-self._learning // case.shards)
        self._offloads = case.plan.offloads_states
        self._bucket_bytes = case.plan.compute_bytes  # an element of the bucket
        self._bucket = NOTHING
        self._filled = 0
        self._pending: list[tuple[int, int]] = []  # parameters in the bucket, and those too large for it with tensors

    def prepare(self) -> None:
        """Allocate a partition of master weights."""
        self.tape.hold_all(self.case.program.buffers, WEIGHTS)
        self._hold_weights()
        if self._has_master and not self._offloads:
            self.tape.hold(4 * self._owned, STATES)

    def _make_states(self) -> None:
        if self._offloads:
            return
        optimizer = self.case.plan.optimizer
        moments = 2 if optimizer in (Optimizer.ADAMW, Optimizer.ADAMW_8BIT) else 1
        self.tape.hold_all([BYTES[optimizer].states / moments * self._owned] * moments, STATES)

    def gradient(self, parameter: int, tensor: int) -> None:
        """Copy the gradient into the bucket; one that is larger than the bucket waits as it is."""
        elements, capacity = self.case.trace.parameters[parameter].elements, self.case.plan.bucket_elements
        if self._filled + elements > capacity:
            self._flush()
        if elements <= capacity:
            self._make_bucket()
            self.tape.free(tensor)
            tensor = NOTHING
        self._filled += elements
        self._pending.append((parameter, tensor))

    def finish(self) -> None:
        """Reduce what is left in the bucket."""
        self._flush()

    def _make_bucket(self) -> None:
        if self._bucket == NOTHING:
            elements = self.case.plan.bucket_elements
            self._bucket = self.tape.hold(self._bucket_bytes * elements, COMMUNICATION)

    def _flush(self) -> None:
        self.tape.pass_by(*self._copies())
        for parameter, tensor in self._pending:
            self._reduced(parameter, tensor)
        self._pending.clear()
        self._filled = 0

    def _copies(self) -> list[int]:
        """Copy the bucket for the reduction (allreduce_bucket, reduce_scatter_coalesced)."""
        return [self._bucket_bytes * self._filled]

    def _reduced(self, parameter: int, tensor: int) -> None:
        """The gradient of a weight is averaged over all ranks; ``tensor`` is its own if it was not in the bucket."""
        self.tape.free(tensor)

    def _widened(self, elements: int) -> list[int]:
        """The partition's gradients, flattened and converted to fp32 if they are not."""
        if self._offloads:
            return []
        widths = [self._gradient_bytes] if self._gradient_bytes == 4 else [self._gradient_bytes, 4]
        return self.tape.hold_all([width * elements for width in widths], TEMPORARIES)


class Zero12(Sharded):
    """Stages 1 and 2: whole weights. A rank keeps the gradients of the weights in its partition."""

    def __init__(self, case: ReplayCase, tape: Tape) -> None:
        super().__init__(case, tape)
        self._shards_gradients = case.plan.sharding.zero_stage == 2
        self._partition: list[int] = []  # the gradients kept between micro-batches
        self._fresh = NOTHING  # those of this one
        self._reduces = True
        self._whole: list[int] = []  # stage 1 forgets those of other ranks at the end of the backward pass only
        # Sums in fp32 beside 16 bits are one partition, up to the step (_use_compact_grad_partition_buffer).
        self._is_compact = self._gradient_bytes > case.plan.compute_bytes
        self._touched = self._weights_touched()
        self._touched_elements = sum(case.trace.parameters[each].elements for each in self._touched)

    def prepare(self) -> None:
        """With an offloaded optimizer, also allocate room for the largest weight's gradient."""
        super().prepare()
        if self._offloads:
            largest = max((each.elements for each in self.case.learning), default=0)
            self.tape.hold(self.case.plan.compute_bytes * largest, COMMUNICATION)

    def _weights_touched(self) -> dict[int, int]:
        """How many elements of each weight are in the partition: of ``rank``, or of the one that computes it first.

        Stage 2 reduces gradients as they come, from the last weight on, stage 1 in the order of the weights.
        """
        first_to_reduce = self.case.shards - 1 if self._shards_gradients else 0
        rank = first_to_reduce if self.case.rank is None else self.case.rank
        first, last = rank * self._owned, (rank + 1) * self._owned
        learning = [number for number, each in enumerate(self.case.trace.parameters) if each.learns]
        ends = list(accumulate(self.case.trace.parameters[number].elements for number in learning))
        starts = [0, *ends[:-1]]
        spans = zip(learning, starts, ends, strict=True)
        shared = {number: min(end, last) - max(start, first) for number, start, end in spans}
        return {number: elements for number, elements in shared.items() if elements > 0}

    def begin(self, is_last: bool) -> None:
        """Stage 1 reduces once per step."""
        self._reduces = is_last or self._shards_gradients

    def gradient(self, parameter: int, tensor: int) -> None:
        """Stage 1 keeps whole gradients until a step's backward passes are over, beside a waiting bucket."""
        self._make_bucket()
        if self._shards_gradients:
            super().gradient(parameter, tensor)
        else:
            Backend.gradient(self, parameter, tensor)

    def _flush(self) -> None:
        if self._is_compact:
            self._add_up()
        super()._flush()

    def _copies(self) -> list[int]:
        """A single rank flattens one slice, which is no copy; but in sums each weight is a slice."""
        slices = len(self._pending) if self._is_compact else 1
        return super()._copies() if self.case.shards > 1 or slices > 1 else []

    def _add_up(self) -> None:
        """Room for the sums is allocated before the bucket is copied; each weight of the copy is widened separately."""
        touched = [self._touched[parameter] for parameter, _ in self._pending if parameter in self._touched]
        if not touched:
            return
        if not self._partition:
            self._partition = self._sums()
        copies = self._copies()[-1:]  # in 16 bits, also if the bucket is wider
        self.tape.pass_by(*copies, self._gradient_bytes * max(touched))

    def _sums(self) -> list[int]:
        return [self.tape.hold(self._gradient_bytes * self._owned, GRADIENTS)]

    def _reduced(self, parameter: int, tensor: int) -> None:
        is_touched = parameter in self._touched
        makes_room = self._fresh == NOTHING and not self._is_compact and not self._offloads
        if is_touched and makes_room:
            self._fresh = self.tape.hold(self._gradient_bytes * self._touched_elements, GRADIENTS)
        if is_touched or self._shards_gradients:
            self.tape.free(tensor)
        else:
            self._whole.append(tensor)

    def finish(self) -> None:
        """The bucket is freed with the backward pass; gradients are added to the previous micro-batch's."""
        if not self._reduces:
            return
        for parameter in sorted(self.gradients):
            super().gradient(parameter, self.gradients.pop(parameter))
        super().finish()
        fresh = [self._fresh, *self._unreached()]
        self.tape.free(self._bucket, *self._whole)
        self._bucket = NOTHING
        self._whole.clear()
        if self._partition:
            self.tape.free(*fresh)
        else:
            self._partition = fresh
        self._fresh = NOTHING

    def _unreached(self) -> list[int]:
        """Weights without a gradient get zeros; sums exist even if nothing was added to them."""
        if self._offloads:
            return []
        if self._is_compact:
            return [] if self._partition else self._sums()
        return self._zeros([each for each in self.case.unreached if each in self._touched], self._gradient_bytes)

    def step(self, is_first: bool) -> None:
        """Update weights in place and gather them in place. States are allocated here, not at engine start.

        The norm is computed first, over one weight's gradient after the other.
        """
        if not self._offloads:
            self.tape.pass_by(_NORM_BYTES * max(self._touched.values(), default=0))
        widened = [] if self._is_compact else self._widened(self._owned)
        if is_first:
            self._make_states()
        self.tape.free(*widened, *self._partition)
        self._partition = []


class Widening(Zero12):
    """Stage 1 with fp32 sums without BF16_Optimizer: for fp16, or an offloaded optimizer.

    Gradients, and the bucket with them, are widened as they are computed (use_grad_accum_attribute).
    """

    def __init__(self, case: ReplayCase, tape: Tape) -> None:
        super().__init__(case, tape)
        self._bucket_bytes = self._gradient_bytes

    def gradient(self, parameter: int, tensor: int) -> None:
        """Keep the gradient in fp32, or add it to the one before."""
        self._make_bucket()
        wide = self.tape.hold(self._gradient_bytes * self.case.trace.parameters[parameter].elements, GRADIENTS)
        self.tape.free(tensor)
        super().gradient(parameter, wide)

    def _copies(self) -> list[int]:
        """The copy is narrowed to be reduced."""
        return [*super()._copies(), self.case.plan.compute_bytes * self._filled]
