from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import distributed
from torch._C._distributed_c10d import HashStore

from memtune_runner.emulated.nccl_messages import MOST_UNREAD, Exchange, Part, Unread


@pytest.fixture
def store() -> Iterator[HashStore]:
    made = HashStore()
    distributed.init_process_group("gloo", store=made, rank=0, world_size=1)
    yield made
    distributed.destroy_process_group()


def test_unread_messages_are_discarded(store: HashStore) -> None:
    unread, part = Unread(), Part(True, [bytes(1 << 10)])
    exchanges = [Exchange(f"memtune/{number}", 0, [0], [1]) for number in range(MOST_UNREAD + 3)]
    for exchange in exchanges:
        unread.add(exchange, exchange.leave(part))
        if exchange is exchanges[0]:
            store.delete_key("memtune/0/0")  # as its reader does
    assert not store.check(["memtune/0/0"])
    reader = Exchange("memtune/1", 1, [0], [1])
    assert reader.parts(None) == [None]
    assert Exchange("memtune/3", 1, [0], [1]).parts(None) == [part]
