"""When DeepSpeed's stage 3 gathers each weight and when it releases it.

Read in deepspeed/runtime/zero/partitioned_param_coordinator.py and partition_parameters.py of 0.19. The first
micro-batch is recorded. From the second on weights are prefetched, and those needed again soon are kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from memtune.memory.replay.replay_case import ReplayCase
from memtune.memory.replay.tape import COMMUNICATION, NOTHING, Tape
from memtune.plans.deepspeed_config import MAX_LIVE_BUCKETS, PREFETCHES_PER_BUCKET

_SOMEBODY = -1  # in place of a weight: a module without weights, or with small ones


@dataclass
class _GatheredWeights:
    """Weights gathered together into one tensor, which stays until each weight was copied and used."""

    flat: int
    waiting: set[int]
    is_split: bool = False


class Gathering:
    """The weights of one rank that are currently whole."""

    def __init__(self, case: ReplayCase, tape: Tape) -> None:
        self._setting = case
        self._tape = tape
        self._parameters = case.trace.parameters
        bucket = case.plan.bucket_elements
        self._most_live = self._reuse = MAX_LIVE_BUCKETS * bucket
        self._prefetched = bucket // PREFETCHES_PER_BUCKET
        self._recorded: list[int] = []
        self._order: Sequence[int] = ()  # the order of use; empty while it is recorded
        self._before: list[int] = []  # the number of elements needed before each
        self._places: dict[int, list[int]] = defaultdict(list)  # of each weight in the order
        self._whole: dict[int, int] = {}  # by weight: the tensor
        self._arriving: dict[int, _GatheredWeights] = {}
        self._holders: dict[int, set[int]] = defaultdict(set)  # running modules, by the weight that each needs
        self._recomputed: dict[int, set[int]] = {}  # by running module: frozen weights that it gathered again
        self._step = self._next = self._live = 0
        self._asked: dict[int, int] = {}  # the last place in the order at which a weight was gathered or found

    def begin(self) -> None:
        """Begin a micro-batch; the first one's order holds for each."""
        if self._recorded and not self._order:
            self._order = self._recorded
            self._before = list(accumulate((self._parameters[each].elements for each in self._order), initial=0))
            for place, weight in enumerate(self._order):
                self._places[weight].append(place)
        self._step = self._next = self._live = 0
        self._asked.clear()

    def end(self) -> None:
        """The backward pass is over: release the rest."""
        self._tape.free(*self._whole.values(), *{each.flat for each in self._arriving.values()})
        for kept in (self._whole, self._arriving, self._holders, self._recomputed):
            kept.clear()

    def need(self, weight: int) -> None:
        """A module begins."""
        self._let_go_recomputed(_SOMEBODY)
        self._fetch(weight)
        self._holders[weight].add(weight)

    def module(self) -> None:
        """A module without a need of its own begins: it still prefetches for others."""
        if self._order:
            self._prefetch()

    def need_again(self, weight: int) -> None:
        """A module is recomputed; a frozen weight stays with the one whose backward pass requested it."""
        asking = next(reversed(self._at_work()), _SOMEBODY)
        self._fetch(weight)
        self._holders[weight].add(weight)
        if not self._parameters[weight].learns:
            self._holders[weight].add(asking)
            self._recomputed.setdefault(asking, set()).add(weight)

    def _at_work(self) -> list[int]:
        return [weight for weight, holders in self._holders.items() if weight in holders]

    def spare(self, weight: int) -> None:
        """A module ends."""
        self._let_go_recomputed(_SOMEBODY)
        self._holders[weight].discard(weight)
        if not self._is_needed_soon(weight):
            self._drop(weight)
        self._let_go_recomputed(weight)
        if not self._holders[weight]:
            del self._holders[weight]  # so that the latest holder is the last

    def _let_go_recomputed(self, module: int) -> None:
        for weight in self._recomputed.pop(module, ()):
            self._holders[weight].discard(module)
            self._drop(weight)

    def _fetch(self, weight: int) -> None:
        if weight not in self._whole and weight not in self._arriving:
            self._gather([weight])
        self._wait(weight)
        if self._order:
            if self._asked.get(weight, -1) < self._step:
                self._asked[weight] = self._next
                self._next += 1
            self._prefetch()
        else:
            self._recorded.append(weight)
        self._step += 1

    def _prefetch(self) -> None:
        room = min(self._most_live - self._live, self._prefetched)
        chosen: list[int] = []
        elements = 0
        while self._next < len(self._order) and elements < room:
            weight = self._order[self._next]
            self._asked[weight] = self._next
            self._next += 1
            if weight not in self._whole and weight not in self._arriving and weight not in chosen:
                chosen.append(weight)
                elements += self._parameters[weight].elements
        if chosen:
            self._gather(chosen)

    def _gather(self, weights: list[int]) -> None:
        self._live += sum(self._parameters[each].elements for each in weights)
        arriving = _GatheredWeights(self._hold(weights), set(weights))
        self._arriving.update(dict.fromkeys(weights, arriving))
        if len(weights) == 1:  # a single weight is gathered in place
            self._whole[weights[0]], arriving.flat, arriving.is_split = arriving.flat, NOTHING, True

    def _wait(self, weight: int) -> None:
        arriving = self._arriving.pop(weight, None)
        if arriving is None:
            return
        if not arriving.is_split:
            arriving.is_split = True
            for each in sorted(arriving.waiting):
                self._whole[each] = self._hold([each])
        arriving.waiting.discard(weight)
        if not arriving.waiting:
            self._tape.free(arriving.flat)

    def _hold(self, weights: list[int]) -> int:
        elements = sum(self._parameters[each].elements for each in weights)
        return self._tape.hold(self._setting.plan.compute_bytes * elements, COMMUNICATION)

    def _is_needed_soon(self, weight: int) -> bool:
        if not self._order:
            return False
        if self._asked.get(weight, -1) > self._step:
            return True
        places = self._places[weight]
        later = bisect_left(places, self._step)
        return later < len(places) and self._before[places[later]] - self._before[self._step] < self._reuse

    def _drop(self, weight: int) -> None:
        if not self._holders[weight] and weight in self._whole and weight not in self._arriving:
            self._live -= self._parameters[weight].elements
            self._tape.free(self._whole.pop(weight))
