"""Adapts a traced program to its library, such as the extra saves of DeepSpeed's stage 3."""

from __future__ import annotations

from dataclasses import replace

from memtune.wire import trace as events
from memtune.wire.trace import Program

_NONE = -1
_OF_STAGE_3 = events.OF_WEIGHTS + events.MODULE


def as_it_runs(program: Program, is_stage_3: bool, keeps_inputs: bool) -> Program:
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
