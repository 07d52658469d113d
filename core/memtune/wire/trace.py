"""The trace of a model: the ordered allocations and frees of one micro-batch, for replay under any plan.

``memtune_runner.tracing`` makes a trace without a GPU, once per numerics (`NUMERICS`); it is parsed here. Sizes are
fixed bytes plus bytes per row of the micro-batch, so that a trace covers every micro-batch. Tensors saved by autograd
are distinguished from those held by Python, so that checkpointing can be replayed, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

VERSION = 3

# half: weights and products of 16 bits. autocast: fp32 weights, products of 16 bits. full: fp32 throughout.
NUMERICS = ("half", "autocast", "full")

# The events, one letter each, with one number each: a tensor, a save, a block.
ALLOC = "a"  # the next tensor is allocated; the number is its module
DROP = "d"  # only autograd still holds the tensor
SAVE = "s"  # autograd holds the tensor; saves are numbered like tensors
KEEP = "k"  # a save that only DeepSpeed's stage 3 makes: the input of a product with a frozen weight
UNPACK = "u"  # the backward pass uses the save
RELEASE = "r"  # autograd releases the save
ENTER = "("  # the forward pass enters a block
LEAVE = ")"  # and leaves it
FIRST = "^"  # no input of the block, which was entered, needs a gradient
GRADIENT = "g"  # the tensor became the gradient of the next in `gradients`
CALL = "["  # the model is called
RETURN = "]"  # and has returned; a loss may be computed around it
BACKWARD = "b"  # the backward pass begins
REACHED = "<"  # the first gradient of a call's result exists
NEED = "{"  # a module that owns this weight begins, in either pass; the number is the weight's
SPARE = "}"  # and ends; without a gradient, its backward pass does not report that
MODULE = "m"  # a module without such a weight begins, in either pass
OF_ALL = CALL + RETURN + BACKWARD + REACHED + MODULE  # those whose number means nothing
OF_BLOCKS = ENTER + LEAVE + FIRST
OF_WEIGHTS = NEED + SPARE
SAVES = SAVE + KEEP
OF_TENSORS = DROP + SAVES + GRADIENT
OF_SAVES = UNPACK + RELEASE

ROOT = -1  # in place of a block: outside all blocks

# The kind of operator that made a tensor, for selective checkpointing.
OTHER, PRODUCT, ATTENTION = ".", "p", "a"
_KNOWN = frozenset(ALLOC + DROP + SAVES + UNPACK + RELEASE + GRADIENT + OF_BLOCKS + OF_WEIGHTS + OF_ALL)


class TraceError(ValueError):
    """An unreadable trace, or a plan that cannot be replayed on it; the message says why."""


class Parameter(NamedTuple):
    """One weight of the model. ``rows`` is its first dimension, which FSDP shards; ``block`` is -1 outside of any."""

    name: str
    elements: int
    rows: int
    learns: bool
    block: int


@dataclass(frozen=True)
class Program:
    """The events of one micro-batch, from its inputs to the last gradient.

    ``codes`` and ``numbers`` are the events. ``fixed`` and ``per_row`` are the bytes of each tensor, ``made_by`` says
    what made it. ``inputs`` are the input tensors of each block entered. ``weights`` and ``buffers`` are the bytes of
    what exists from the start.
    """

    codes: str
    numbers: Sequence[int]
    fixed: Sequence[int]
    per_row: Sequence[int]
    made_by: str
    inputs: Sequence[Sequence[int]]
    gradients: Sequence[int]
    weights: Sequence[int]
    buffers: Sequence[int]

    def sizes(self, rows: int) -> list[int]:
        """The bytes of every tensor at a micro-batch."""
        return [fixed + rows * each for fixed, each in zip(self.fixed, self.per_row, strict=True)]


@dataclass(frozen=True)
class Trace:
    """A traced model. ``rows`` are the lengths of its rows of repeated blocks, which are numbered throughout.

    ``assumed`` lists in words the assumptions that only data could verify. ``mounted`` says whether files of a pod's
    volumes were used, which may differ for the next job.
    """

    model: str
    sequence_length: int
    kernels: str
    modules: Sequence[str]
    parameters: Sequence[Parameter]
    rows: Sequence[int]
    programs: Mapping[str, Program]
    assumed: Sequence[str] = ()
    mounted: bool = False

    @property
    def total(self) -> int:
        """All weights of the model, in elements."""
        return sum(each.elements for each in self.parameters)

    @property
    def blocks(self) -> int:
        """The number of repeated blocks."""
        return sum(self.rows)

    def program(self, numerics: str) -> Program:
        """The model's program with these numerics."""
        if numerics not in self.programs:
            raise TraceError(
                f"the trace of {self.model} has no program {numerics!r}, only {', '.join(self.programs)}; trace again "
                f"with --numerics {numerics}"
            )
        return self.programs[numerics]


def dumps(trace: Trace) -> str:
    """The trace as compact JSON."""
    document = {
        "version": VERSION,
        "model": trace.model,
        "sequenceLength": trace.sequence_length,
        "kernels": trace.kernels,
        "modules": list(trace.modules),
        "parameters": [list(each) for each in trace.parameters],
        "rows": list(trace.rows),
        "programs": {name: _program_json(each) for name, each in trace.programs.items()},
        "assumed": list(trace.assumed),
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True)


def loads(text: str) -> Trace:
    """Parse what ``dumps`` wrote."""
    try:
        document = json.loads(text)
        version = document["version"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise TraceError("this is no trace: give a file that memtune trace wrote") from None
    if version != VERSION:
        raise TraceError(f"this trace has version {version!r}, and version {VERSION} is read here; trace again")
    try:
        return _trace(document)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise TraceError(f"this trace is damaged ({error}); trace again") from None


def _trace(document: dict[str, Any]) -> Trace:
    return Trace(
        model=str(document["model"]),
        sequence_length=int(document["sequenceLength"]),
        kernels=str(document["kernels"]),
        modules=[str(each) for each in document["modules"]],
        parameters=[Parameter(*each) for each in document["parameters"]],
        rows=[int(each) for each in document["rows"]],
        programs={str(name): _read_program(each) for name, each in document["programs"].items()},
        assumed=tuple(str(each) for each in document.get("assumed", ())),
    )


def _program_json(program: Program) -> dict[str, Any]:
    return {
        "codes": program.codes,
        "numbers": list(program.numbers),
        "fixed": list(program.fixed),
        "perRow": list(program.per_row),
        "madeBy": program.made_by,
        "inputs": [list(each) for each in program.inputs],
        "gradients": list(program.gradients),
        "weights": list(program.weights),
        "buffers": list(program.buffers),
    }


def _read_program(stored: dict[str, Any]) -> Program:
    program = Program(
        codes=stored["codes"],
        numbers=stored["numbers"],
        fixed=stored["fixed"],
        per_row=stored["perRow"],
        made_by=stored["madeBy"],
        inputs=stored["inputs"],
        gradients=stored["gradients"],
        weights=stored["weights"],
        buffers=stored["buffers"],
    )
    tensors = program.codes.count(ALLOC)
    columns = (program.fixed, program.per_row, program.made_by)
    if len(program.numbers) != len(program.codes) or any(len(each) != tensors for each in columns):
        raise TraceError("this trace is damaged (its columns differ in length); trace again")
    if not set(program.codes) <= _KNOWN:
        raise TraceError("this trace is damaged (it has unknown events); trace again")
    return program
