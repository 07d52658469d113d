"""What tests/gpu tries on CUDA, tried on a virtual GPU: the same bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launches import Place
from on_device import counters_follow, expandable_segments_fragment_less, who_held_the_memory
from recovery import trainer
from whole_product import gets_up_again

from memtune.report import Device
from memtune.units import GIB, MIB
from memtune_runner.install import install
from memtune_runner.virtual import VirtualGpu
from memtune_runner.watch.statistics import CudaStatistics, VirtualStatistics, fraction_of


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pod") / "runner"
    install(directory)
    return directory


def test_the_counters_follow() -> None:
    with VirtualGpu(GIB) as gpu:
        counters_follow(VirtualStatistics(gpu), torch.device("cpu"))


def test_expandable_segments_fragment_less(runner: Path, tmp_path: Path) -> None:
    expandable_segments_fragment_less(Place(runner, tmp_path), Device.VIRTUAL)


def test_who_held_the_memory_is_told_beside_the_report(runner: Path, tmp_path: Path) -> None:
    failed, _ = who_held_the_memory(trainer(runner, Device.VIRTUAL), tmp_path)
    assert not (failed.directory / "memory-rank-0.pickle").exists(), "a virtual GPU knows no lines of code"


def test_a_job_gets_up_again(tmp_path: Path) -> None:
    gets_up_again(Device.VIRTUAL, tmp_path)


@pytest.mark.parametrize(
    ("limit_bytes", "share", "fraction"),
    [
        (None, None, 1.0),
        (40 * GIB, None, 0.5),
        (76 * GIB, None, 1.0),  # what is sold as 80 GB and declared so is the whole device
        (None, 0.25, 0.25),
        (40 * GIB, 0.5, 0.25),
        (84 * GIB, 0.5, 0.5),
    ],
)
def test_a_limit_and_a_share_make_one_fraction(limit_bytes: int | None, share: float | None, fraction: float) -> None:
    assert fraction_of(80 * GIB, limit_bytes, share) == fraction


class SpokenTo:
    """Stands in for torch.cuda on a machine with two GPUs of 40 and 80 GiB, and notes which of them is spoken to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.devices: list[int] = []
        self.limits: list[float] = []
        for name in ("memory_stats", "mem_get_info", "reset_peak_memory_stats", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", self.limit)
        monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: self.snapshot()["segments"])
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", self.snapshot)
        monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", lambda _: None)

    def limit(self, fraction: float, device: int) -> None:
        self.limits.append(fraction)
        self.devices.append(device)

    def mem_get_info(self, device: int) -> tuple[int, int]:
        self.devices.append(device)
        return (device + 1) * MIB, (40, 80)[device] * GIB

    def memory_stats(self, device: int) -> dict[str, int]:
        self.devices.append(device)
        return {"reserved_bytes.all.current": (device + 1) * GIB}

    def reset_peak_memory_stats(self, device: int) -> None:
        self.devices.append(device)

    def synchronize(self, device: int) -> None:
        self.devices.append(device)

    def snapshot(self) -> dict[str, Any]:
        return {"segments": [_segment(0), _segment(1)]}


def _segment(device: int) -> dict[str, Any]:
    return {"device": device, "blocks": [{"size": (device + 1) * MIB, "state": "inactive"}]}


@pytest.mark.parametrize(("local_rank", "device"), [(0, 0), (1, 1), (3, 0)])
def test_the_device_is_that_which_the_rank_will_use_whatever_is_the_current_one(
    local_rank: int, device: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda = SpokenTo(monkeypatch)
    statistics = CudaStatistics(20 * GIB, None, local_rank)
    assert cuda.limits == [20 / (40, 80)[device]]
    reading = statistics.read()
    assert reading is not None
    assert (reading.total_bytes, reading.reserved_bytes) == (20 * GIB, (device + 1) * GIB)
    assert statistics.largest_free_block_bytes() == (device + 1) * MIB
    assert statistics.free_bytes() == (device + 1) * MIB
    assert statistics.dump(tmp_path / "memory.pickle")["segments"] == [_segment(device)]
    statistics.reset_peaks()
    statistics.synchronize()
    assert set(cuda.devices) == {device}
