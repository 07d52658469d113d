"""Records a run to a tape: two optimizer steps of a plan, with all allocations of trace and library."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from memtune.memory.replay import micro_batch as scripts
from memtune.memory.replay import tape as tapes
from memtune.memory.replay.backend import Backend
from memtune.memory.replay.deepspeed import deepspeed
from memtune.memory.replay.fsdp import Fsdp
from memtune.memory.replay.micro_batch import Script
from memtune.memory.replay.replay_case import ReplayCase
from memtune.memory.replay.tape import NOTHING, Tape
from memtune.plans.knobs import Offload
from memtune.units import MIB
from memtune.wire import trace as events
from memtune.wire.trace import Program

# States of torch's optimizers appear with the first step; from the second on, steps are alike.
_STEPS = 2
# Enough for gradient accumulation: the third micro-batch of a step is like the second.
_MICRO_BATCHES = 2
_SMALLEST_OFFLOADED_BYTES = MIB  # as in memtune_runner.engine.offload

_BACKENDS: dict[str, Callable[[ReplayCase, Tape], Backend]] = {"ddp": Backend, "fsdp": Fsdp, "deepspeed": deepspeed}
_KIND_NUMBERS = {scripts.ACTIVATIONS: tapes.ACTIVATIONS, scripts.TEMPORARIES: tapes.TEMPORARIES}


class Recorder:
    """Records runs of one trace; plans that differ only in sizes or sharding share a script."""

    def __init__(self, kept: int = 16) -> None:
        self._kept = kept
        self._scripts: OrderedDict[tuple[object, ...], Script] = OrderedDict()

    def record(self, case: ReplayCase) -> Tape:
        """The run of a plan."""
        tape = Tape()
        backend = _BACKENDS[case.plan.sharding.backend](case, tape)
        sizes = case.program.sizes(case.plan.micro_batch)
        script = self._script(case, sizes)
        tape.begin(tapes.INIT)
        backend.prepare()
        for step in range(_STEPS):
            micro_batches = min(case.plan.accumulation, _MICRO_BATCHES)
            for number in range(micro_batches):
                tape.begin(tapes.FORWARD)
                backend.begin(is_last=number == micro_batches - 1)
                _micro_batch(script, sizes, tape, backend)
            tape.begin(tapes.STEP)
            backend.step(is_first=step == 0)
        return tape

    def _script(self, case: ReplayCase, sizes: list[int]) -> Script:
        offloaded = frozenset[int]()
        if case.plan.offload is Offload.ACTIVATIONS:
            offloaded = frozenset(n for n, size in enumerate(sizes) if size >= _SMALLEST_OFFLOADED_BYTES)
        key = id(case.program), case.plan.checkpointing, offloaded, case.is_stage_3
        if key not in self._scripts:
            while len(self._scripts) >= self._kept:
                self._scripts.popitem(last=False)
            program = adapted_to_library(case.program, case.is_stage_3, case.keeps_inputs)
            made = scripts.write(case.trace, program, case.plan.checkpointing, offloaded)
            self._scripts[key] = made
        return self._scripts[key]


def _micro_batch(script: Script, sizes: list[int], tape: Tape, backend: Backend) -> None:
    """Forward, loss and backward. The two commonest steps are inlined for speed."""
    events, held, kinds = tape.events, tape.sizes, tape.kinds
    kind_of = [_KIND_NUMBERS[kind] for kind in script.kinds]
    for _, life in script.gradients:
        if life != NOTHING:
            kind_of[life] = tapes.GRADIENTS
    numbers = [NOTHING] * len(script.tensors)
    answers = {
        scripts.ENTER: backend.enter,
        scripts.LEAVE: backend.leave,
        scripts.BACK: backend.back,
        scripts.DONE: backend.done,
        scripts.FIRST: backend.first,
        scripts.NEED: backend.need,
        scripts.AGAIN: backend.need_again,
        scripts.SPARE: backend.spare,
        scripts.MODULE: backend.module,
    }
    for action, number in script.steps:
        if action == scripts.ALLOC:
            size = sizes[script.tensors[number]]
            if size:
                numbers[number] = made = len(held)
                held.append(size)
                kinds.append(kind_of[number])
                events.append(made)
        elif action == scripts.FREE:
            if numbers[number] != NOTHING:
                events.append(~numbers[number])
        elif action == scripts.GRADIENT:
            parameter, life = script.gradients[number]
            backend.gradient(parameter, numbers[life] if life != NOTHING else NOTHING)
        elif action == scripts.BACKWARD:
            tape.begin(tapes.BACKWARD)
        else:
            answers[action](number)
    backend.finish()


_NONE = -1

_OF_STAGE_3 = events.OF_WEIGHTS + events.MODULE


def adapted_to_library(program: Program, is_stage_3: bool, keeps_inputs: bool) -> Program:
    """The program with or without saved inputs of products with frozen weights."""
    left_out = ("" if is_stage_3 else _OF_STAGE_3) + ("" if keeps_inputs else events.KEEP)
    codes, numbers = [], []
    places: list[int] = []  # the new index of each save; none if it is dropped
    made = 0
    for code, number in zip(program.codes, program.numbers, strict=True):
        if code in events.SAVES:
            is_made = code not in left_out
            places.append(made if is_made else _NONE)
            made += is_made
        elif code in events.OF_SAVES:
            number = places[number]
        if code not in left_out and number != _NONE:
            codes.append(events.SAVE if code == events.KEEP else code)
            numbers.append(number)
    return replace(program, codes="".join(codes), numbers=numbers)
