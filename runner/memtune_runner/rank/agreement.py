"""How all ranks of a probe end at the same step: the first one decides, and the others follow.

A rank that went on alone would wait in its next collective for ranks that have gone. The first rank ends a probe only
once every other one waits for its word at this step; and what the store holds of a step never changes, whoever wrote it
first. So a rank that is late, or counts its steps differently, costs a few seconds and ends no probe.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from memtune.wire.pruning import Pruned
from memtune_runner.rank import shared_store

# All ranks end a step at about the same time: its gradients were reduced over them.
_GATHERING = timedelta(seconds=5)
# The first rank's word comes after it has waited for the others.
_FOLLOWING = timedelta(seconds=15)
_PREFIX = "memtune/probe-step"
_GO_ON = "go on"


def on(step: int, mine: Pruned | None, world: int) -> Pruned | None:
    """Why the probe ends with this step on every rank, None if it goes on. ``mine`` is what this rank would do.

    Where several ranks have no store in common, no probe ends early.
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
            with suppress(RuntimeError):  # it takes too long
                store.wait([decided], _FOLLOWING)
        elif mine is not None:
            with suppress(RuntimeError):
                store.wait([f"{came}/{other}" for other in others], _GATHERING)
                wanted = str(mine)
        word = store.compare_set(decided, "", wanted).decode()
    except RuntimeError:  # the store has gone with its host, and the probe will not last
        return None
    return None if word == _GO_ON else Pruned(word)
