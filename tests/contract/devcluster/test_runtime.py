"""When a node's container runtime counts as ready."""

from __future__ import annotations

import socket
from pathlib import Path

from dev.cluster.runtime import answers


def test_a_runtime_is_ready_once_it_answers_and_not_by_the_socket_that_a_killed_one_left(tmp_path: Path) -> None:
    place = tmp_path / "containerd.sock"
    assert not answers(place)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen()
        assert answers(place)
    assert place.exists()
    assert not answers(place)
