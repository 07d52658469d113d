"""Compresses a trace to fit a pod's termination message, which Kubernetes truncates at 4 KiB.

Names of modules and parameters are dropped: no plan needs them. Every number is relative to the previous one of its
kind, so that equal blocks read the same, and repetitions are encoded as such. A message comes from the user's container
and is untrusted: bounded before it is unpacked, checked afterwards.
"""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from memtune.wire import trace as events
from memtune.wire.trace import NUMERICS, Parameter, Program, Trace, TraceError

# Increase this when tracing changes: a stored trace of another version is replaced.
VERSION = 5
LONGEST_BYTES = 4096
# Bounds that no model comes near.
_LARGEST_BYTES = 16 * 1024 * 1024
_MOST_EVENTS = 250_000
_LARGEST_NUMBER = 2**48
_LONGEST_NAME = 64
_SHORTEST_FOLD = 12
# A small dictionary: unpacking takes that much memory for any message.
_FILTERS: list[dict[str, Any]] = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20, "pb": 0}]


def pack(trace: Trace) -> str:
    """The trace as ASCII."""
    parameters = [list(column) for column in zip(*(each[1:] for each in trace.parameters), strict=True)] or [[]] * 4
    elements, rows, learns, blocks = parameters
    document = [
        VERSION,
        trace.model,
        trace.sequence_length,
        trace.kernels,
        list(trace.rows),
        [_folded(column) for column in (elements, rows, [int(each) for each in learns], _steps(blocks))],
        {name: _packed(program) for name, program in trace.programs.items()},
        trace.mounted,
    ]
    plain = json.dumps(document, separators=(",", ":")).encode()
    return base64.b85encode(lzma.compress(plain, lzma.FORMAT_RAW, filters=_FILTERS)).decode()


def _packed(program: Program) -> list[Any]:
    starts = list(_tensors_at_enter(program))
    inputs = [[start - each for each in group] for start, group in zip(starts, program.inputs, strict=True)]
    return [
        _folded([ord(code) for code in program.codes]),
        _folded(_relative(program.codes, program.numbers)),
        _folded(program.fixed),
        _folded(program.per_row),
        _folded([ord(maker) for maker in program.made_by]),
        inputs,
        _folded(_steps(program.gradients)),
        _folded(program.weights),
        _folded(program.buffers),
    ]


def _tensors_at_enter(program: Program) -> Iterator[int]:
    tensors = 0
    for code in program.codes:
        tensors += code == events.ALLOC
        if code == events.ENTER:
            yield tensors


def _relative(codes: str, numbers: Iterable[int]) -> list[int]:
    tensors, saves, block, weight, found = 0, 0, 0, 0, []
    for code, number in zip(codes, numbers, strict=True):
        if code == events.ALLOC:
            tensors += 1
        elif code in events.OF_TENSORS:
            found.append(tensors - number)
        elif code in events.OF_SAVES:
            found.append(number - saves)
            saves = number
        elif code in events.OF_WEIGHTS:
            found.append(number - weight)
            weight = number
        elif code not in events.OF_ALL:
            found.append(number - block)
            block = number
    return found


def _steps(numbers: Sequence[int]) -> list[int]:
    return [number - before for before, number in zip([0, *numbers], numbers, strict=False)]


def _folded(numbers: Sequence[int]) -> list[Any]:
    """Encode repetitions in the numbers as a length and a distance, however long."""
    found: list[Any] = []
    seen: dict[tuple[int, ...], int] = {}
    position = 0
    while position < len(numbers):
        start = seen.get(tuple(numbers[position : position + _SHORTEST_FOLD]))
        length = 1 if start is None else _alike(numbers, start, position)
        found.append(numbers[position] if start is None else [length, position - start])
        for known in range(position, position + length):
            seen[tuple(numbers[known : known + _SHORTEST_FOLD])] = known
        position += length
    return found


def _alike(numbers: Sequence[int], start: int, position: int) -> int:
    length = 0
    while position + length < len(numbers) and numbers[start + length] == numbers[position + length]:
        length += 1
    return length


def _unfolded(folded: Sequence[Any]) -> list[int]:
    found: list[int] = []
    for each in folded:
        if not isinstance(each, list):
            found.append(_number(each))
            continue
        length, back = map(_number, each)
        if not (0 < back <= len(found) and 0 < length <= _MOST_EVENTS - len(found)):
            raise TraceError("the trace repeats what it has not told")
        for _ in range(length):
            found.append(found[-back])
    return found


def unpack(text: str) -> Trace:
    """Parse what ``pack`` wrote."""
    try:
        document = json.loads(_unpacked(text))
        version = document[0]
        if version != VERSION:
            raise TraceError(f"this message holds a trace of version {version!r}, and {VERSION} is read here")
        return _trace(*document[1:])
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, lzma.LZMAError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"this is no trace, or a damaged one ({type(error).__name__})") from None


def _unpacked(text: str) -> bytes:
    reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS)
    plain = reader.decompress(base64.b85decode(text.strip()), _LARGEST_BYTES)
    if not reader.eof:
        raise TraceError("the trace is cut off, or larger than any model makes it")
    return plain


def _trace(
    model: str,
    sequence_length: int,
    kernels: str,
    rows: list[int],
    parameters: list[list[Any]],
    programs: Mapping[str, list[Any]],
    mounted: bool,
) -> Trace:
    elements, first, learns, blocks = map(_unfolded, parameters)
    if type(mounted) is not bool:
        raise TraceError(f"the trace holds {mounted!r} where yes or no belongs")
    found = Trace(
        model=str(model)[:_LONGEST_NAME],
        sequence_length=_number(sequence_length),
        kernels=str(kernels)[:_LONGEST_NAME],
        modules=(),
        parameters=[
            Parameter("", *each[:2], bool(each[2]), each[3])
            for each in zip(elements, first, learns, accumulate(blocks), strict=True)
        ],
        rows=[_number(each) for each in rows],
        programs={name: _program(*programs[name]) for name in NUMERICS if name in programs},
        mounted=mounted,
    )
    _check(found)
    return found


def _program(
    codes: list[Any],
    numbers: list[Any],
    fixed: list[Any],
    per_row: list[Any],
    made_by: list[Any],
    inputs: list[list[int]],
    gradients: list[Any],
    weights: list[Any],
    buffers: list[Any],
) -> Program:
    letters = bytes(_unfolded(codes)).decode("ascii")
    program = Program(
        codes=letters,
        numbers=list(_absolute(letters, _unfolded(numbers))),
        fixed=_unfolded(fixed),
        per_row=_unfolded(per_row),
        made_by=bytes(_unfolded(made_by)).decode("ascii"),
        inputs=[],
        gradients=list(accumulate(_unfolded(gradients))),
        weights=_unfolded(weights),
        buffers=_unfolded(buffers),
    )
    starts = _tensors_at_enter(program)
    return replace(program, inputs=[[start - each for each in g] for start, g in zip(starts, inputs, strict=True)])


def _absolute(codes: str, numbers: Iterable[int]) -> Iterator[int]:
    rest, tensors, saves, block, weight = iter(numbers), 0, 0, 0, 0
    for code in codes:
        if code == events.ALLOC:
            tensors += 1
            yield 0  # the module, which is not encoded
        elif code in events.OF_TENSORS:
            yield tensors - next(rest, _LARGEST_NUMBER)
        elif code in events.OF_SAVES:
            saves += next(rest, _LARGEST_NUMBER)
            yield saves
        elif code in events.OF_WEIGHTS:
            weight += next(rest, _LARGEST_NUMBER)
            yield weight
        elif code in events.OF_ALL:
            yield 0
        else:
            block += next(rest, _LARGEST_NUMBER)
            yield block
    if next(rest, None) is not None:
        raise TraceError("the trace has numbers of events that it has not")


def _number(value: int) -> int:
    if type(value) is not int or abs(value) > _LARGEST_NUMBER:
        raise TraceError(f"the trace holds {value!r} where a number belongs")
    return value


def _check(trace: Trace) -> None:
    """Check that every index is in range and no size is negative."""
    blocks, parameters = trace.blocks, len(trace.parameters)
    _within((len(trace.programs),), len(NUMERICS) + 1, "programs", least=1)
    sizes = (size for each in trace.parameters for size in (each.elements, each.rows))
    _within((trace.sequence_length, *sizes), _LARGEST_NUMBER, "sizes")
    _within((*trace.rows, blocks), _MOST_EVENTS, "rows of blocks")
    _within((each.block for each in trace.parameters), blocks, "blocks of parameters", least=-1)
    for program in trace.programs.values():
        _within(map(sum, zip(program.fixed, program.per_row, strict=True)), _LARGEST_NUMBER, "bytes")
        _check_events(program, blocks, parameters)


def _check_events(program: Program, blocks: int, parameters: int) -> None:
    tensors = saves = gradients = 0
    for code, number in zip(program.codes, program.numbers, strict=True):
        if code == events.ALLOC:
            tensors += 1
        elif code in events.OF_TENSORS:
            _within((number,), tensors, "tensors")
            saves += code in events.SAVES
            gradients += code == events.GRADIENT
        elif code in events.OF_SAVES:
            _within((number,), saves, "saves")
        elif code in events.OF_BLOCKS:
            _within((number,), blocks, "blocks")
        elif code in events.OF_WEIGHTS:
            _within((number,), parameters, "weights")
        elif code not in events.OF_ALL:
            raise TraceError(f"the trace holds the unknown event {code!r}")
    _within((len(program.codes),), _MOST_EVENTS, "events")
    _within((number for group in program.inputs for number in group), tensors, "inputs")
    _within(program.gradients, parameters, "parameters")
    # A fixed size may be negative: the bytes of at least one row are added to it.
    _within((*program.per_row, *program.weights, *program.buffers), _LARGEST_NUMBER, "bytes")
    columns = {"fixed": tensors, "per_row": tensors, "made_by": tensors, "gradients": gradients, "weights": parameters}
    for name, length in columns.items():
        if len(getattr(program, name)) != length:
            raise TraceError(f"the trace has {len(getattr(program, name))} {name} where it needs {length}")


def _within(numbers: Iterable[int], end: int, what: str, least: int = 0) -> None:
    for number in numbers:
        if not least <= number < end:
            raise TraceError(f"the trace speaks of {what} that there are not: {number}")
