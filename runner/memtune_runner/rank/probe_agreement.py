"""Makes all ranks of a probe end at the same step: rank 0 decides, the others follow.

A rank that went on alone would wait in its next collective for ranks that are gone. Rank 0 ends a probe only once every
other rank waits for its decision at this step, and the first decision in the store never changes. A rank that is late,
or counts its steps differently, costs a few seconds and ends no probe.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from memtune_runner.rank import shared_store

# All ranks end a step at about the same time, because its gradients are reduced over them.
_GATHERING = timedelta(seconds=5)
# Rank 0 decides only after waiting for the others.
_FOLLOWING = timedelta(seconds=15)
_PREFIX = "memtune/probe-step"
_GO_ON = "go on"


def on(step: int, mine: str | None, world: int) -> str | None:
    """Return why the probe ends on every rank with this step; None if it goes on. ``mine`` is this rank's own reason.

    Ranks without a common store never end a probe early.
    """
    store = shared_store.of_all_ranks()
    if store is None:
        return mine if world == 1 else None
    from torch import distributed

    rank, others = distributed.get_rank(), range(1, distributed.get_world_size())
    came, decided = f"{_PREFIX}/{step}/came", f"{_PREFIX}/{step}/decided"
    wanted = _GO_ON
    try:
        if rank:
            store.set(f"{came}/{rank}", "")
            with suppress(RuntimeError):  # timed out
                store.wait([decided], _FOLLOWING)
        elif mine is not None:
            with suppress(RuntimeError):
                store.wait([f"{came}/{other}" for other in others], _GATHERING)
                wanted = str(mine)
        word = store.compare_set(decided, "", wanted).decode()
    except RuntimeError:  # the store is gone with its host, and the probe will end soon
        return None
    return None if word == _GO_ON else word
