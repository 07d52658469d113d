"""Which process listens on a port: the cluster's, one that its packages started, or a stranger's."""

from __future__ import annotations

import pytest
from listeners import Process, is_ours

SUPERVISOR = 100
# By pid: a supervisor with a node and a part, an earlier service and one that started meanwhile.
PROCESSES = {
    1: Process(0, 1),
    SUPERVISOR: Process(1, 500),
    101: Process(SUPERVISOR, 510),
    102: Process(101, 520),
    40: Process(1, 30),
    140: Process(1, 530),
}
BEFORE = {(1, 1), (40, 30), (140, 40)}


@pytest.mark.parametrize(
    ("pid", "name", "ours"),
    [
        pytest.param(102, "anything", True, id="what a supervisor has started, however far below"),
        pytest.param(40, "prometheus", False, id="a service that was there before"),
        pytest.param(
            140, "etcd", True, id="a part's program that somebody has started since, be its number an old one"
        ),
        pytest.param(140, "nginx", False, id="another's"),
        pytest.param(141, "etcd", False, id="one that has ended meanwhile"),
    ],
)
def test_the_owner_of_a_process_is_found(pid: int, name: str, ours: bool) -> None:
    assert is_ours(pid, name, {SUPERVISOR}, PROCESSES, BEFORE) is ours
