"""What tests/gpu tries on CUDA, tried on a virtual GPU: the same bodies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launches import Place
from on_device import counters_follow, expandable_segments_fragment_less, who_held_the_memory
from recovery import trainer
from whole_product import gets_up_again

from memtune.report import Device
from memtune.units import GIB
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


@pytest.mark.parametrize(("local_rank", "device"), [(0, 0), (1, 1), (3, 0)])
def test_the_limit_is_that_of_the_device_which_the_rank_will_use(
    local_rank: int, device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited: list[tuple[float, int]] = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda at: (0, (40, 80)[at] * GIB))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *of: limited.append(of))
    CudaStatistics(20 * GIB, None, local_rank)
    assert limited == [(20 / (40, 80)[device], device)]
