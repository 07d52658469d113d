"""Finds where a program's blocks begin and end, forward and backward, and what is checkpointed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from memtune.plans.knobs import Checkpointing
from memtune.wire import trace as events
from memtune.wire.trace import Program, Trace


@dataclass
class Segment:
    """Blocks that are checkpointed together: a stretch of forward events."""

    first: int
    last: int
    tensors: int  # those made before it
    inputs: list[int]
    saves: list[int] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    again: dict[int, int] | None = None  # where the model itself checkpoints: what it recomputes, and the kept tensor
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
    """Every pass through a block in the forward pass, in order."""
    found: list[Visit] = []
    entered = tensors = 0
    for position, (code, number) in enumerate(zip(program.codes, program.numbers, strict=True)):
        if code == events.ENTER:
            entered = position
            tensors += program.codes.count(events.ALLOC, found[-1].first if found else 0, position)
        elif code == events.LEAVE:
            found.append(Visit(number, entered, position, tensors, program.inputs[len(found)]))
        elif code == events.BACKWARD:
            break  # from here on the model's own checkpointing runs blocks again
    return found


def segments_of(trace: Trace, program: Program, visits: Sequence[Visit], checkpointing: Checkpointing) -> list[Segment]:
    """The segments that the mode recomputes at once; none without checkpointing."""
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
        again = {visit: position for position, visit in _run_again(program, visits).items()}
        for number, segment in enumerate(segments):
            segment.kept = _chosen(program, segment)
            if number in again:
                segment.again = _made_again(program, segment, again[number]) or None
    return segments


def _chosen(program: Program, segment: Segment) -> set[int]:
    """The attention and every second matrix product, as memtune_runner.engine.selective_checkpointing keeps them."""
    first = segment.tensors
    made = program.codes.count(events.ALLOC, segment.first, segment.last)
    kept, products = set(), 0
    for tensor in range(first, first + made):
        maker = program.made_by[tensor]
        products += maker == events.PRODUCT
        if maker == events.ATTENTION or (maker == events.PRODUCT and products % 2):
            kept.add(tensor)
    return kept


def _made_again(program: Program, segment: Segment, position: int) -> dict[int, int]:
    """The kept tensors that the model's own recomputation uses, starting at a position."""
    entered, left = (program.codes.find(code, position + 1) for code in (events.ENTER, events.LEAVE))
    if left >= 0 and not 0 <= entered < left:
        return {}  # it contains more than the block, which runs once more by itself
    moved = program.codes.count(events.ALLOC, 0, position) - segment.tensors
    made = program.codes.count(events.ALLOC, segment.first, segment.last)
    # It stops when all is saved: at the latest at the input of the last product.
    last = program.made_by.rfind(events.PRODUCT, segment.tensors, segment.tensors + made)

    def looks(tensor: int) -> tuple[str, int, int]:
        return program.made_by[tensor], program.fixed[tensor], program.per_row[tensor]

    return {
        tensor + moved: tensor
        for tensor in segment.kept
        if tensor != last and tensor + moved < len(program.made_by) and looks(tensor + moved) == looks(tensor)
    }


def backward_bounds(
    trace: Trace, program: Program, visits: Sequence[Visit]
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Where the backward pass of each visit begins, at its first save, and ends, at its last save or gradient.

    A block that the model itself checkpoints begins with its recomputation. Weights that are used more than once have
    their gradients when the backward pass has left the first use.
    """
    again = _run_again(program, visits)
    visit_of = _visits_of_saves(program, visits)
    earliest = {visit.block: number for number, visit in reversed(list(enumerate(visits)))}
    gradients = iter(program.gradients)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, (code, number) in enumerate(zip(program.codes, program.numbers, strict=True)):
        visit = -1
        if code == events.GRADIENT:
            visit = earliest.get(trace.parameters[next(gradients)].block, -1)
        elif code in events.OF_SAVES:
            visit = visit_of.get(number, -1)
        elif position in again:
            visit = again[position]
        if visit >= 0:
            last[visit] = position
            if code in (events.UNPACK, events.ENTER):
                first.setdefault(visit, position)
    for (visit, position), following in pairwise(sorted(first.items(), key=itemgetter(1))):
        if last[visit] == position:  # it runs again, and weights that were used before have no gradient yet
            last[visit] = following[1] - 1
    begins, ends = defaultdict(list), defaultdict(list)
    for visit, position in first.items():
        begins[position].append(visits[visit].block)
        ends[last[visit]].append(visits[visit].block)
    return begins, ends


def _run_again(program: Program, visits: Sequence[Visit]) -> dict[int, int]:
    """Where blocks run again in the backward pass, and which visit: the last visit of a block comes first."""
    visits_to = defaultdict(list)
    for number, visit in enumerate(visits):
        visits_to[visit.block].append(number)
    found = {}
    position = program.codes.find(events.ENTER, program.codes.find(events.BACKWARD))
    while position >= 0:
        waiting = visits_to[program.numbers[position]]
        if waiting:
            found[position] = waiting.pop()
        position = program.codes.find(events.ENTER, position + 1)
    return found


def _visits_of_saves(program: Program, visits: Sequence[Visit]) -> dict[int, int]:
    visit_of, save = {}, 0
    visit_at = {place: number for number, visit in enumerate(visits) for place in range(visit.first, visit.last)}
    for position, code in enumerate(program.codes):
        if code in events.SAVES:
            if position in visit_at:
                visit_of[save] = visit_at[position]
            save += 1
    return visit_of
