"""Reconstructs the recording of a whole model from one with shortened rows of blocks.

Two periods in the middle of a row must have done the same, each with its own tensors, its neighbours' and those of no
period; then all periods left out did the same, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from memtune.wire import trace as events
from memtune_runner.tracing.folding import PERIODS, Fold
from memtune_runner.tracing.model_hooks import Numbers
from memtune_runner.tracing.recording import Recording, in_order

# The two compared periods of the six; the copies go between them.
_LEFT, _RIGHT = PERIODS // 2 - 1, PERIODS // 2


class IrregularError(Exception):
    """The periods of a row differ, so all of them must run."""


class _Own(NamedTuple):
    """A tensor or save created by a period; if relative, ``period`` is a distance in periods."""

    period: int
    is_backward: bool
    number: int


class _Step(NamedTuple):
    """An event and what it refers to: modules, blocks and weights by number, tensors and saves by number or `_Own`."""

    code: str
    about: Any
    made: Any = None
    details: Any = None  # size and maker of an allocation, inputs of a block, weight of a gradient


class _Span(NamedTuple):
    """The numbers of a row's blocks, modules or weights: ``stride`` per period, starting at ``first``."""

    first: int
    stride: int
    end: int

    def moved(self, number: int, periods: int) -> int:
        """Return the number at the same place in another period."""
        return number + periods * self.stride if self.first <= number < self.end else number


def unfold(recording: Recording, fold: Fold, numbers: Numbers) -> Recording:
    """Return the recording with the periods that were left out."""
    return _written(_Unfolding(recording, fold, numbers).steps())


class _Unfolding:
    def __init__(self, recording: Recording, fold: Fold, numbers: Numbers) -> None:
        self._extra = fold.left_out
        firsts = range(fold.start, len(fold.blocks) - fold.length + 1, fold.length)
        periods = [fold.blocks[first : first + fold.length] for first in firsts]
        blocks = [[numbers.blocks[block] for block in each] for each in periods]
        self._blocks = _span(blocks)
        self._modules = _span([[numbers.modules[m] for block in each for m in block.modules()] for each in periods])
        self._weights = _span([[numbers.weights[w] for block in each for w in block.parameters()] for each in periods])
        places = _places(recording, [*blocks[:_RIGHT], *blocks[_RIGHT + self._extra :]])
        self._events = list(zip(places, _read(recording, places), strict=True))

    def steps(self) -> Iterator[_Step]:
        """Yield all events, including those of the periods that did not run."""
        patterns = {way: self._pattern(_LEFT, way) for way in (False, True)}
        if any(patterns[way] != self._pattern(_RIGHT, way) for way in patterns) or self._has_outside_users():
            raise IrregularError
        left_out = range(_RIGHT, _RIGHT + self._extra)
        for place, group in groupby(self._events, key=itemgetter(0)):
            if place == (_LEFT, True):
                for period in reversed(left_out):
                    yield from self._copy(patterns[True], period)
            for _, step in group:
                yield self._final(place, step)
                if _is_from_outside(place, step) and step.about.period == _LEFT:
                    yield from (step._replace(about=step.about._replace(period=period)) for period in left_out)
            if place == (_LEFT, False):
                for period in left_out:
                    yield from self._copy(patterns[False], period)

    def _pattern(self, period: int, is_backward: bool) -> list[_Step]:
        """Return a period's events, translated to the left period."""
        steps = [step for place, step in self._events if place == (period, is_backward)]
        return [self._moved(step, period, _LEFT, self._moves(period)) for step in steps]

    def _moves(self, period: int) -> int:
        """Return the distance from the left period to this one, among all periods of the model."""
        return period - _LEFT + (self._extra if period >= _RIGHT else 0)

    def _has_outside_users(self) -> bool:
        """Whether others than neighbours use either period, except to free a tensor of both at the same moment."""
        moment = 0
        dropped: Counter[tuple[int, _Own]] = Counter()
        for place, step in self._events:
            moment += step.code != events.DROP
            if _is_from_outside(place, step):
                if step.code != events.DROP:
                    return True
                dropped[moment, step.about._replace(period=0)] += 1 if step.about.period == _LEFT else -1
        return any(dropped.values())

    def _copy(self, pattern: Sequence[_Step], period: int) -> Iterator[_Step]:
        for step in pattern:
            yield self._moved(step, _LEFT, period, _LEFT - period)

    def _final(self, place: tuple[int, bool] | None, step: _Step) -> _Step:
        """Return a step of a period that ran, with its tensors renumbered for the whole model."""
        # Everything after the left period, or before the right one, is a copy now.
        first = {_LEFT: PERIODS, _RIGHT: 0}.get(place[0] if place else -1, _RIGHT)
        return _renamed(step, lambda own: own._replace(period=own.period + self._extra * (own.period >= first)))

    def _moved(self, step: _Step, period: int, to: int, back: int) -> _Step:
        """Translate a step to another period, which comes ``back`` periods earlier."""
        step = _renamed(step, lambda own: own._replace(period=own.period - period + to))
        if step.code == events.ALLOC:
            return step._replace(about=self._modules.moved(step.about, -back))
        if step.code in events.OF_BLOCKS:
            return step._replace(about=self._blocks.moved(step.about, -back))
        if step.code in events.OF_WEIGHTS:
            return step._replace(about=self._weights.moved(step.about, -back))
        if step.code == events.GRADIENT:
            return step._replace(details=self._weights.moved(step.details, -back))
        return step


def _renamed(step: _Step, rename: Callable[[_Own], _Own]) -> _Step:
    def new(named: Any) -> Any:
        return rename(named) if isinstance(named, _Own) else named

    details = tuple(map(new, step.details)) if step.code == events.ENTER else step.details
    return _Step(step.code, new(step.about), new(step.made), details)


def _is_from_outside(place: tuple[int, bool] | None, step: _Step) -> bool:
    """Whether an event refers to one of the two periods from outside of it and its neighbours."""
    return any(
        own.period in (_LEFT, _RIGHT) and (place is None or abs(own.period - place[0]) > 1) for own in _named(step)
    )


def _named(step: _Step) -> Iterator[_Own]:
    going_in = step.details if step.code == events.ENTER else ()
    return (each for each in (step.about, *going_in) if isinstance(each, _Own))


def _span(groups: Sequence[Sequence[int]]) -> _Span:
    """Return the span of numbers that rise evenly from period to period."""
    if not groups[0]:
        return _Span(0, 0, 0)
    stride = groups[1][0] - groups[0][0]
    if any(list(group) != [each + place * stride for each in groups[0]] for place, group in enumerate(groups)):
        raise IrregularError
    return _Span(groups[0][0], stride, groups[0][0] + stride * len(groups))


def _places(recording: Recording, periods: Sequence[Sequence[int]]) -> list[tuple[int, bool] | None]:
    """Return for each event its inner period and whether it is in the backward pass."""
    entered, reached = _bounds(recording)
    places: list[tuple[int, bool] | None] = [None] * len(recording.codes)
    for period in range(1, PERIODS - 1):
        edges = (
            (entered.get(periods[period][0], -1), entered.get(periods[period + 1][0], -1)),
            (reached.get(periods[period][-1], -1), reached.get(periods[period - 1][-1], -1)),
        )
        for is_backward, (first, last) in zip((False, True), edges, strict=True):
            if not 0 <= first < last:
                raise IrregularError
            places[first:last] = [(period, is_backward)] * (last - first)
    return places


def _bounds(recording: Recording) -> tuple[dict[int, int], dict[int, int]]:
    """Return where each block is entered, and where the backward pass reaches it: at a weight or a save."""
    entered: dict[int, int] = {}
    reached: dict[int, int] = {}
    block_of_save: list[int] = []
    block_of_weight: dict[int, int] = {}
    inside = -1
    for position, (code, number) in enumerate(zip(recording.codes, recording.numbers, strict=True)):
        if code == events.ENTER:
            if number in entered:
                raise IrregularError
            entered[number], inside = position, number
        elif code == events.LEAVE:
            inside = -1
        elif code in events.SAVES:
            block_of_save.append(inside)
        elif code == events.NEED and inside >= 0:
            block_of_weight[number] = inside
        elif code == events.NEED:
            reached.setdefault(block_of_weight.get(number, -1), position)
        elif code == events.UNPACK:
            reached.setdefault(block_of_save[number], position)
    return entered, reached


def _read(recording: Recording, places: Sequence[tuple[int, bool] | None]) -> Iterator[_Step]:
    tensors: list[Any] = []
    saves: list[Any] = []
    counts: Counter[Any] = Counter()
    sizes = zip(recording.sizes, recording.made_by, strict=True)
    inputs, gradients = iter(recording.inputs), iter(recording.gradients)
    for code, number, place in zip(recording.codes, recording.numbers, places, strict=True):
        about: Any = (
            tensors[number] if code in events.OF_TENSORS else saves[number] if code in events.OF_SAVES else number
        )
        made: Any = None
        details: Any = None
        if code in events.ALLOC + events.SAVES:
            made_before = tensors if code == events.ALLOC else saves
            made = len(made_before) if place is None else _Own(*place, counts[id(made_before), place])
            counts[id(made_before), place] += 1
            made_before.append(made)
        if code == events.ALLOC:
            details = next(sizes)
        elif code == events.ENTER:
            details = tuple(tensors[each] for each in next(inputs))
        elif code == events.GRADIENT:
            details = next(gradients)
        yield _Step(code, about, made, details)


def _written(steps: Iterator[_Step]) -> Recording:
    codes, numbers, sizes, made_by = [], [], [], []
    inputs, gradients = [], []
    tensors: dict[Any, int] = {}
    saves: dict[Any, int] = {}
    for code, about, made, details in steps:
        codes.append(code)
        of_one = tensors if code in events.OF_TENSORS else saves if code in events.OF_SAVES else None
        numbers.append(about if of_one is None else of_one[about])
        if code == events.ALLOC:
            tensors[made] = len(tensors)
            sizes.append(details[0])
            made_by.append(details[1])
        elif code in events.SAVES:
            saves[made] = len(saves)
        elif code == events.ENTER:
            inputs.append(sorted(tensors[each] for each in details))
        elif code == events.GRADIENT:
            gradients.append(details)
    return Recording("".join(codes), in_order(codes, numbers), sizes, "".join(made_by), inputs, gradients)
