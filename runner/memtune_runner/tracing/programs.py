"""Traces a model: one program for each numerics, from two micro-batches of different size."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memtune.wire.trace import NUMERICS, Parameter, Program, Trace
from memtune_runner.engine.activation_checkpointing import switch_off_own
from memtune_runner.engine.blocks import repeated_blocks
from memtune_runner.tracing import factory as factories
from memtune_runner.tracing.factory import Subject
from memtune_runner.tracing.shared_status import ignore_place
from memtune_runner.tracing.trace_errors import TracingError
from memtune_runner.tracing.tracer import Tracer


def trace(
    name: str,
    rows: int = 2,
    sequence_length: int = 2048,
    numerics: Sequence[str] = NUMERICS,
    as_gpu: bool = True,
    arguments: Mapping[str, Any] | None = None,
    loss_autocast: bool = False,
    set_place: Callable[[str], None] = ignore_place,
) -> Trace:
    """Trace a factory's model at ``rows`` and ``rows + 1``, from which every micro-batch follows.

    With ``loss_autocast``, the loss around a 16-bit model is computed under autocast, as in the runner's own engine.
    ``set_place`` is called with what is being done, in case the process dies.
    """
    set_place(f"while {name.partition(':')[0]} was imported")
    factory = factories.find(name)
    set_place("while the factory was called")
    with FakeTensorMode(allow_non_fake_inputs=True), _without_collections():
        subject = factories.build(name, factory, rows, sequence_length, arguments)
        return trace_subject(subject, rows, sequence_length, numerics, as_gpu, loss_autocast, set_place)


def trace_subject(
    subject: Subject,
    rows: int,
    sequence_length: int,
    numerics: Sequence[str] = NUMERICS,
    as_gpu: bool = True,
    loss_autocast: bool = False,
    set_place: Callable[[str], None] = ignore_place,
) -> Trace:
    """Trace a model built under fake tensors, which must still be active."""
    model = subject.model.train()
    switch_off_own(model)  # as the runner does
    repeated = repeated_blocks(model)
    tracer = Tracer(subject, repeated, as_gpu, loss_autocast, set_place)
    # The least computation comes first, for it must run all blocks; half comes last: casting buffers cannot be undone.
    programs = {each: _program(tracer, rows, each) for each in sorted(numerics, key=["full", "autocast", "half"].index)}
    return Trace(
        model=type(model).__name__,
        sequence_length=sequence_length,
        kernels="gpu" if as_gpu else "cpu",
        modules=tracer.numbers.names,
        parameters=_parameters(model, repeated),
        rows=[len(row) for row in repeated],
        programs={each: programs[each] for each in numerics},
        assumed=tuple(sorted(tracer.assumed)),
    )


@contextmanager
def _without_collections() -> Iterator[None]:
    """Make the lifetime of cyclic garbage deterministic; what exists already is not the trace's garbage."""
    was_enabled, had_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        if not had_frozen:  # what the caller has frozen would take time in each of its later collections
            gc.unfreeze()
        if was_enabled:
            gc.enable()


def _cast(model: nn.Module, numerics: str) -> None:
    """Cast the weights to their formats; frozen ones to the format of their use."""
    for each in (*model.parameters(), *model.buffers()):
        if not each.is_floating_point():
            continue
        if numerics == "half":
            each.data = each.data.to(torch.bfloat16)
        elif isinstance(each, nn.Parameter):
            wide = numerics == "full" or each.requires_grad
            each.data = each.data.to(torch.float32 if wide else torch.bfloat16)


def _program(tracer: Tracer, rows: int, numerics: str) -> Program:
    model = tracer.subject.model
    _cast(model, numerics)
    small, large = tracer.record(rows, numerics), tracer.record(rows + 1, numerics)
    if small.codes != large.codes:  # the first pass may have filled the model's caches
        small = tracer.record(rows, numerics)
    if (small.codes, small.numbers, small.gradients) != (large.codes, large.numbers, large.gradients):
        raise TracingError(
            f"{type(model).__name__} does other things with {rows + 1} rows than with {rows}, so that no other "
            "micro-batch can be told from these; let its code not depend on the number of rows"
        )
    per_row = [more - less for less, more in zip(small.sizes, large.sizes, strict=True)]
    return Program(
        codes=small.codes,
        numbers=small.numbers,
        fixed=[size - rows * each for size, each in zip(small.sizes, per_row, strict=True)],
        per_row=per_row,
        made_by=small.made_by,
        inputs=small.inputs,
        gradients=small.gradients,
        weights=[each.nbytes for each in model.parameters()],
        buffers=[each.nbytes for each in model.buffers()],
    )


def _parameters(model: nn.Module, repeated: list[list[nn.Module]]) -> list[Parameter]:
    block_of = {
        id(weight): number
        for number, block in enumerate(block for row in repeated for block in row)
        for weight in block.parameters()
    }
    return [
        Parameter(
            name, each.numel(), each.shape[0] if each.dim() else 1, each.requires_grad, block_of.get(id(each), -1)
        )
        for name, each in model.named_parameters()
    ]
