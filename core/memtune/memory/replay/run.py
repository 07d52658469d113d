"""Records a run to a tape: two optimizer steps of a plan, with all allocations of trace and library."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from memtune.memory.replay import script as scripts
from memtune.memory.replay import tape as tapes
from memtune.memory.replay.backend import Backend
from memtune.memory.replay.deepspeed import deepspeed
from memtune.memory.replay.fsdp import Fsdp
from memtune.memory.replay.running import as_it_runs
from memtune.memory.replay.script import Script
from memtune.memory.replay.setting import Setting
from memtune.memory.replay.tape import NOTHING, Tape
from memtune.plans.knobs import Offload
from memtune.units import MIB

# States of torch's optimizers appear with the first step; from the second on, steps are alike.
_STEPS = 2
# Enough for gradient accumulation: the third micro-batch of a step is like the second.
_MICRO_BATCHES = 2
_SMALLEST_OFFLOADED_BYTES = MIB  # as in memtune_runner.engine.offload

_BACKENDS: dict[str, Callable[[Setting, Tape], Backend]] = {"ddp": Backend, "fsdp": Fsdp, "deepspeed": deepspeed}
_KIND_NUMBERS = {scripts.ACTIVATIONS: tapes.ACTIVATIONS, scripts.TEMPORARIES: tapes.TEMPORARIES}


class Recorder:
    """Records runs of one trace; plans that differ only in sizes or sharding share a script."""

    def __init__(self, kept: int = 16) -> None:
        self._kept = kept
        self._scripts: OrderedDict[tuple[object, ...], Script] = OrderedDict()

    def record(self, setting: Setting) -> Tape:
        """The run of a plan."""
        tape = Tape()
        backend = _BACKENDS[setting.plan.sharding.backend](setting, tape)
        sizes = setting.program.sizes(setting.plan.micro_batch)
        script = self._script(setting, sizes)
        tape.begin(tapes.INIT)
        backend.prepare()
        for step in range(_STEPS):
            micro_batches = min(setting.plan.accumulation, _MICRO_BATCHES)
            for number in range(micro_batches):
                tape.begin(tapes.FORWARD)
                backend.begin(is_last=number == micro_batches - 1)
                _micro_batch(script, sizes, tape, backend)
            tape.begin(tapes.STEP)
            backend.step(is_first=step == 0)
        return tape

    def _script(self, setting: Setting, sizes: list[int]) -> Script:
        offloaded = frozenset[int]()
        if setting.plan.offload is Offload.ACTIVATIONS:
            offloaded = frozenset(n for n, size in enumerate(sizes) if size >= _SMALLEST_OFFLOADED_BYTES)
        key = id(setting.program), setting.plan.checkpointing, offloaded, setting.is_stage_3
        if key not in self._scripts:
            while len(self._scripts) >= self._kept:
                self._scripts.popitem(last=False)
            program = as_it_runs(setting.program, setting.is_stage_3, setting.keeps_inputs)
            made = scripts.write(setting.trace, program, setting.plan.checkpointing, offloaded)
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
