"""A barrier for saves that detects a rank which will not come.

Scripts often call ``checkpoint_saved`` or ``save_pretrained`` on rank 0 alone. In a barrier that rank would wait for
the others, and they would wait for it in a collective of their next step. So the ranks meet by keys in
torch.distributed's store. Each rank has a thread that looks there for a call that waits: if the rank has begun another
backward pass since, it will not come, and the thread says so. The rank may stand still anywhere in its next step: on a
GPU, it does when it asks for a value behind a collective. A rank that stands in a barrier of all ranks meanwhile does
not come either, since the rank that waits for it cannot come there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from memtune.wire.report import Phase
from memtune_runner.rank import phases, progress, shared_store
from memtune_runner.rank.bad_input import BadInputError

# gloo's own barrier waits as long: another rank may still write a large shard.
LONGEST_WAIT_SECONDS = 1_800.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.5
# A rank with more batches than the others may have trained its last one and be about to come.
_SECOND_LOOK_SECONDS = 2.0
_TRAINS = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP)
_PREFIX = "memtune/saved"

_calls = 0  # of this process; all ranks make the same ones
_barriers = 0  # that this process has entered
_is_in_barrier = False


def wait_for_all_ranks(called: str, remedy: str, longest_wait_seconds: float = LONGEST_WAIT_SECONDS) -> None:
    """Wait until every rank has called this; raise BadInputError if one goes on without it or takes too long.

    ``called`` is the call in the words of the script.
    """
    global _calls
    store = shared_store.of_all_ranks()
    if store is None:
        return
    from torch import distributed

    rank, world = distributed.get_rank(), distributed.get_world_size()
    _calls += 1
    call = f"{_PREFIX}/{_calls}"
    store.set(f"{call}/came/{rank}", "")
    if not phases.is_beside_training():  # otherwise the script saves in the background while it trains
        store.set(f"{call}/passes", str(progress.now().backward_passes))
    deadline, pause = time.monotonic() + longest_wait_seconds, _FIRST_PAUSE_SECONDS
    while missing := _without(store, f"{call}/came", range(world)):
        if any(store.check([f"{call}/passed/{rank}"]) for rank in missing):
            time.sleep(_SECOND_LOOK_SECONDS)
            missing = _without(store, f"{call}/came", range(world))
            if gone := [rank for rank in missing if store.check([f"{call}/passed/{rank}"])]:
                raise BadInputError(_message(called, world, missing, f"{_named(gone)} went on without it", remedy))
        if time.monotonic() > deadline:
            took = f"{_named(missing)} did not come within {longest_wait_seconds / 60:.0f} minutes"
            raise BadInputError(_message(called, world, missing, took, remedy))
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class PassedCallWatch:
    """A thread that informs waiting ranks if this one has gone past their call, even while this one is blocked.

    It is not the watchdog's thread, since the store may block while the training uses it.
    """

    def __init__(self, period_seconds: float) -> None:
        self._period_seconds = period_seconds
        self._ended = threading.Event()

    def start(self) -> None:
        """Start looking."""
        threading.Thread(target=self._watch, name="memtune-lookout", daemon=True).start()

    def stop(self) -> None:
        """Stop looking."""
        self._ended.set()

    def _watch(self) -> None:
        stands_before = 0
        with suppress(RuntimeError):  # the store may have gone with its host
            while not self._ended.wait(self._period_seconds):
                stands_before = _look(stands_before)


@contextmanager
def in_barrier() -> Iterator[None]:
    """This rank waits for all others: one that waits for it in a call of its own never comes."""
    global _barriers, _is_in_barrier
    _barriers, _is_in_barrier = _barriers + 1, True
    try:
        yield
    finally:
        _is_in_barrier = False


def _look(stood_in: int) -> int:
    """Inform a rank that waits in the other barrier. Returns the barrier in which both wait, which is certain at the
    second look.
    """
    store, call = shared_store.of_all_ranks(), f"{_PREFIX}/{_calls + 1}"
    if store is None or not store.check([f"{call}/passes"]):
        return 0
    stands_in = _barriers if _is_in_barrier else 0
    is_past = phases.current() in _TRAINS and progress.now().backward_passes > int(store.get(f"{call}/passes"))
    if is_past or (stands_in and stands_in == stood_in):
        _pass(store)
    return stands_in


def announce_end() -> None:
    """Announce that this rank makes no more calls, because its process group or script ends."""
    global _calls
    store = shared_store.of_all_ranks()
    if store is not None:
        with suppress(RuntimeError):  # the store may be gone with its host
            _pass(store)
        _calls += 1  # calls of a later group are different calls


def reset() -> None:
    """Reset to the start of a run."""
    global _calls
    _calls = 0


def _pass(store: Any) -> None:
    from torch import distributed

    store.set(f"{_PREFIX}/{_calls + 1}/passed/{distributed.get_rank()}", "")


def _without(store: Any, prefix: str, ranks: range) -> list[int]:
    """Return the ranks without a key below the prefix; a single query if all have one."""
    keys = [f"{prefix}/{rank}" for rank in ranks]
    return [] if store.check(keys) else [rank for rank, key in zip(ranks, keys, strict=True) if not store.check([key])]


def _message(called: str, world: int, missing: list[int], why: str, remedy: str) -> str:
    came = _named([rank for rank in range(world) if rank not in missing])
    return f"{called} was called on {came} only, and {why}: {remedy}"


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
