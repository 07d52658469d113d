"""Where a program's blocks begin and end, in the forward pass and in the backward pass, and what is checkpointed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memtune import trace as events
from memtune.knobs import Checkpointing
from memtune.trace import Program, Trace


@dataclass
class Segment:
    """Blocks that are checkpointed as one: a stretch of events of the forward pass."""

    first: int
    last: int
    tensors: int  # those made before it
    inputs: list[int]
    saves: list[int] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    unclaimed: list[int] = field(default_factory=list)  # lives that selective checkpointing kept, until they are used
    held: list[int] = field(default_factory=list)
    is_recomputed: bool = False
    waiting: int = 0


class Visit(NamedTuple):
    """One pass through a block."""

    block: int
    first: int
    last: int
    tensors: int
    inputs: Sequence[int]


def visits_of(program: Program) -> list[Visit]:
    """Every pass through a block, in order."""
    found: list[Visit] = []
    entered = tensors = 0
    for position, (code, number) in enumerate(zip(program.codes, program.numbers, strict=True)):
        if code == events.ENTER:
            entered = position
            tensors += program.codes.count(events.ALLOC, found[-1].first if found else 0, position)
        elif code == events.LEAVE:
            found.append(Visit(number, entered, position, tensors, program.inputs[len(found)]))
    return found


def segments_of(trace: Trace, program: Program, visits: Sequence[Visit], checkpointing: Checkpointing) -> list[Segment]:
    """What the mode recomputes at once; nothing, if it is none."""
    if checkpointing.mode == "none":
        return []
    every = checkpointing.every if checkpointing.mode == "every" else 1
    places = [place for length in trace.rows for place in range(length)]
    segments: list[Segment] = []
    for visit in visits:
        if places[visit.block] % every == 0 or not segments:
            segments.append(Segment(visit.first, visit.last, visit.tensors, list(visit.inputs)))
        else:
            segments[-1].last = visit.last
    if checkpointing.mode == "selective":
        for segment in segments:
            segment.kept = _chosen(program, segment)
    return segments


def _chosen(program: Program, segment: Segment) -> set[int]:
    """The attention and every second matrix product, as memtune_runner.selective keeps them."""
    first = segment.tensors
    made = program.codes.count(events.ALLOC, segment.first, segment.last)
    kept, products = set(), 0
    for tensor in range(first, first + made):
        maker = program.made_by[tensor]
        products += maker == events.PRODUCT
        if maker == events.ATTENTION or (maker == events.PRODUCT and products % 2):
            kept.add(tensor)
    return kept


def backward_bounds(
    trace: Trace, program: Program, visits: Sequence[Visit]
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Where the backward pass of each block begins, at its first save, and ends, at its last or its last gradient.

    What the model itself checkpoints it begins by running again.
    """
    again = _run_again(program)
    block_of = _blocks_of_saves(program, visits)
    gradients = iter(program.gradients)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, (code, number) in enumerate(zip(program.codes, program.numbers, strict=True)):
        block = -1
        if code == events.GRADIENT:
            block = trace.parameters[next(gradients)].block
        elif code in (events.UNPACK, events.RELEASE):
            block = block_of.get(number, -1)
        elif position in again:
            block = number
        if block >= 0:
            last[block] = position
            if code in (events.UNPACK, events.ENTER):
                first.setdefault(block, position)
    begins, ends = defaultdict(list), defaultdict(list)
    for block, position in first.items():
        begins[position].append(block)
        ends[last[block]].append(block)
    return begins, ends


def _run_again(program: Program) -> set[int]:
    """Where blocks are entered and not left: torch stops as soon as it has what was to be saved."""
    entered: dict[int, int] = {}
    for position, (code, number) in enumerate(zip(program.codes, program.numbers, strict=True)):
        if code == events.ENTER:
            entered[number] = position
        elif code == events.LEAVE:
            entered.pop(number, None)
    return set(entered.values())


def _blocks_of_saves(program: Program, visits: Sequence[Visit]) -> dict[int, int]:
    block_of, save = {}, 0
    block_at = {position: visit.block for visit in visits for position in range(visit.first, visit.last)}
    for position, code in enumerate(program.codes):
        if code == events.SAVE:
            if position in block_at:
                block_of[save] = block_at[position]
            save += 1
    return block_of
