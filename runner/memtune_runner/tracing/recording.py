"""The recording of a micro-batch, in canonical order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from memtune.wire import trace as events


class Recording(NamedTuple):
    """The events of one micro-batch and the bytes of its tensors."""

    codes: str
    numbers: list[int]
    sizes: list[int]
    made_by: str
    inputs: list[list[int]]
    gradients: list[int]


def merged(
    codes: list[str],
    numbers: list[int],
    sizes: list[int],
    made_by: list[str],
    inputs: list[list[int]],
    gradients: list[int],
    operands: Mapping[int, tuple[int, ...]],
) -> Recording:
    """Build the recording; a sum of gradients from ``operands`` reuses the memory of an operand that ended there."""
    same: dict[int, int] = {}  # a sum, and the tensor whose memory it reuses
    dropped: set[int] = set()  # positions
    tensor = -1
    candidate = -1
    for position, (code, number) in enumerate(zip(codes, numbers, strict=True)):
        if code == events.ALLOC:
            tensor += 1
            candidate = tensor if tensor in operands else -1
        elif code == events.DROP and candidate >= 0 and number in operands[candidate]:
            if sizes[number] == sizes[candidate]:
                same[candidate] = same.get(number, number)
                dropped.add(position)
            candidate = -1
    names: dict[int, int] = {}
    kept = [number for number in range(len(sizes)) if number not in same]
    names.update({number: place for place, number in enumerate(kept)})
    names.update({number: names[first] for number, first in same.items()})
    out_codes, out_numbers = [], []
    tensor = -1
    for position, (code, number) in enumerate(zip(codes, numbers, strict=True)):
        if code == events.ALLOC:
            tensor += 1
            if tensor in same:
                continue
        if position in dropped:
            continue
        out_codes.append(code)
        out_numbers.append(names[number] if code in events.OF_TENSORS else number)
    renamed = [sorted({names[each] for each in group}) for group in inputs]
    return Recording(
        "".join(out_codes),
        in_order(out_codes, out_numbers),
        [sizes[number] for number in kept],
        "".join(made_by[number] for number in kept),
        renamed,
        gradients,
    )


def in_order(codes: Sequence[str], numbers: Sequence[int]) -> list[int]:
    """Return the numbers with tensors freed at the same moment sorted, since autocast's cache has no order."""
    ordered: list[int] = []
    for code, group in groupby(zip(codes, numbers, strict=True), key=itemgetter(0)):
        found = [number for _, number in group]
        ordered += sorted(found) if code == events.DROP else found
    return ordered
