"""devcluster's messages about disks that are too full."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.cluster import disk
from dev.cluster.disk import GIB, Need

CLUSTER = Need(Path("/state/of/it"), 4 * GIB, "the cluster")
BUILD = Need(Path("/cache"), 8 * GIB, "building Kubernetes")
IMAGE = Need(Path("/var/images"), 5 * GIB, "the image of runner")


@pytest.fixture(autouse=True)
def two_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(path: Path) -> tuple[int, int]:
        return (2, 4 * GIB) if path.is_relative_to("/var") else (1, 10 * GIB)

    monkeypatch.setattr(disk, "_disk", of)


def test_space_on_one_disk_is_added_up() -> None:
    assert [disk.lacking([need]) for need in (CLUSTER, BUILD)] == ["", ""]
    assert disk.lacking([CLUSTER, BUILD]) == (
        "the disk of /state/of/it has 10.0 GiB free, and this needs 12 GiB: the cluster (4 GiB) and "
        "building Kubernetes (8 GiB); free some space there"
    )


def test_space_on_two_disks_is_not_added_up() -> None:
    assert disk.lacking([BUILD, IMAGE]) == (
        "the disk of /var/images has 4.0 GiB free, and this needs 5 GiB: the image of runner (5 GiB); "
        "free some space there"
    )


@pytest.mark.parametrize(
    "said",
    [
        "write /tmp/go-link/000001.o: no space left on device",
        "cp: error writing 'x': No space left on device",
        "E: You don't have enough free space in /var/cache/apt/archives/.",
    ],
)
def test_programs_that_found_no_room_are_understood(said: str) -> None:
    assert disk.is_full(said)
    assert not disk.is_full("make: *** [all] Error 2")


def test_the_fullest_disk_is_named() -> None:
    assert disk.full().startswith("the disk is full (/var/")
    assert ", 4.0 GiB free now)" in disk.full()
    assert disk.full(Path("/cache/x")).startswith(
        "the disk is full (/cache/x, 10.0 GiB free now): free some space there"
    )
