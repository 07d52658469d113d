"""Runs plans of a job on the emulated GPU, as many at a time as there are processors and host memory for."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from memtune.units import GIB
from memtune_cli.input import machine

if TYPE_CHECKING:
    from memtune.plans.knobs import Offload
    from memtune.plans.plan import Plan
    from memtune_cli.input.emulated_job import EmulatedRun

# For what another plan takes more, and for other programs.
_MARGIN_BYTES = GIB


class Room:
    """Decides whether another run may begin beside those that have not ended.

    A run is taken to need as much host memory as the largest before it that offloads the same, or what is predicted.
    """

    def __init__(
        self,
        predicted: Callable[[Plan], int],
        most: int | None = None,
        available: Callable[[], int] = machine.available_bytes,
    ) -> None:
        self._predicted, self._most, self._available = predicted, most or machine.processors(), available
        self._before = available()
        self._taken: dict[Offload, int] = {}

    def took(self, plan: Plan, host_bytes: int) -> None:
        """Learn what a run had at most."""
        self._taken[plan.offload] = max(self._taken.get(plan.offload, 0), host_bytes)

    def is_left(self, plan: Plan, beside: Sequence[Plan]) -> bool:
        """Whether a run of this plan may begin beside these, which may grow yet; one alone always may."""
        if not beside or len(beside) >= self._most:
            return not beside
        needed = self._needed(plan) + _MARGIN_BYTES
        return needed <= self._available() and needed + sum(map(self._needed, beside)) <= self._before

    def _needed(self, plan: Plan) -> int:
        return self._taken.get(plan.offload) or self._predicted(plan)


class _Turns:
    """Shows what runs say in the order of their plans: at once of the first that has not ended, of others later."""

    def __init__(self) -> None:
        self._lock, self._turn = Lock(), 1
        self._kept: dict[int, list[str]] = {}
        self._ended: set[int] = set()

    def say(self, number: int, line: str) -> None:
        with self._lock:
            if number <= self._turn:
                _show(line)
            else:
                self._kept.setdefault(number, []).append(line)

    def end(self, number: int) -> None:
        with self._lock:
            self._ended.add(number)
            while self._turn in self._ended:
                self._turn += 1
                _show(*self._kept.pop(self._turn, ()))


def _show(*lines: str) -> None:
    print(*lines, sep="", end="", file=sys.stderr, flush=True)


def run_all(
    plans: Sequence[Plan], begun: Callable[[int, Plan], EmulatedRun], room: Room, time_limit: int
) -> list[dict[str, Any]]:
    """Begin the run of each plan as soon as there is room, and return the results. An exception ends all runs."""
    turns, waiting = _Turns(), deque(enumerate(plans, start=1))
    results: dict[int, dict[str, Any]] = {}
    running: dict[int, EmulatedRun] = {}
    futures: dict[Future[dict[str, Any]], int] = {}
    with ThreadPoolExecutor(len(plans)) as pool:
        try:
            while waiting or running:
                while waiting and room.is_left(waiting[0][1], [run.plan for run in running.values()]):
                    number, plan = waiting.popleft()
                    run = running[number] = begun(number, plan)
                    futures[pool.submit(run.ended, time_limit, partial(turns.say, number))] = number
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    number = futures.pop(future)
                    results[number] = future.result()
                    turns.end(number)
                    run = running.pop(number)
                    if run.host_bytes:
                        room.took(run.plan, run.host_bytes)
        finally:
            for run in running.values():  # as after Ctrl-C
                run.kill()
    return [results[number] for number in sorted(results)]
