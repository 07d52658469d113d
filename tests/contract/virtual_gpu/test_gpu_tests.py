"""The checks of tests/gpu, run on a virtual GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from complete_job_run import assert_job_recovers_and_finishes, job_of
from device_checks import (
    counters_follow,
    expandable_segments_fragment_less,
    memory_of_varying_lengths,
    memory_table_after_oom,
)
from engine_ranks import settings_of
from launches import Place
from oom_recovery import Trainer
from warm_environment import training_python

from memtune.plans.plan import Plan
from memtune.units import GIB, MIB
from memtune.wire.report import Device, Ending
from memtune_runner.device.statistics import CudaStatistics, VirtualStatistics, fraction_of
from memtune_runner.install import install
from memtune_runner.rank.failure_causes import of_exception
from memtune_runner.rank.ranks import Rank
from memtune_runner.virtual.gpu import VirtualGpu
from memtune_runner.watch.hang import HangLimits, HangRule
from memtune_runner.watch.rank_report import report_of
from memtune_runner.watch.watch import Watch


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pod") / "runner"
    install(directory)
    return directory


def test_the_counters_follow_allocations_and_frees() -> None:
    with VirtualGpu(GIB) as gpu:
        counters_follow(VirtualStatistics(gpu), torch.device("cpu"))


def test_expandable_segments_fragment_less(runner: Path, tmp_path: Path) -> None:
    expandable_segments_fragment_less(Place(runner, tmp_path, training_python()), Device.VIRTUAL)


def test_the_holders_of_memory_are_listed_beside_the_report(runner: Path, tmp_path: Path) -> None:
    failed, _ = memory_table_after_oom(Trainer(runner, Device.VIRTUAL, training_python()), tmp_path)
    assert not (failed.directory / "memory-rank-0.pickle").exists(), "a virtual GPU knows no lines of code"


def test_no_command_need_be_named_python(runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On some machines only `python3` is."""
    (tmp_path / "bin").mkdir()
    only = tmp_path / "bin" / "python3"
    only.write_text(f'#!/bin/sh\nexec {training_python()} "$@"\n')
    only.chmod(0o755)
    monkeypatch.setenv("PATH", str(only.parent))
    monkeypatch.setattr(sys, "executable", str(only))
    assert memory_of_varying_lengths(Place(runner, tmp_path), Device.VIRTUAL, False).peak_reserved_bytes
    train = Trainer(runner, Device.VIRTUAL)
    launch = train(tmp_path / "trainer", train.large, 0, steps=1)
    assert launch.exit_code == 0, launch.stdout + launch.stderr
    assert job_of(Device.VIRTUAL, tmp_path)["spec"]["template"]["spec"]["containers"][0]["command"][0] == "python3"


def test_a_job_recovers_from_an_out_of_memory(tmp_path: Path) -> None:
    assert_job_recovers_and_finishes(Device.VIRTUAL, tmp_path, training_python())


@pytest.mark.parametrize(
    ("limit_bytes", "share", "fraction"),
    [
        (None, None, 1.0),
        (40 * GIB, None, 0.5),
        (76 * GIB, None, 1.0),  # a GPU sold and declared as 80 GB is the whole device
        (None, 0.25, 0.25),
        (40 * GIB, 0.5, 0.25),
        (84 * GIB, 0.5, 0.5),
    ],
)
def test_a_limit_and_a_share_make_one_fraction(limit_bytes: int | None, share: float | None, fraction: float) -> None:
    assert fraction_of(80 * GIB, limit_bytes, share) == fraction


class SpokenTo:
    """Replaces torch.cuda with two GPUs of 40 and 80 GiB, and records which one is used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.devices: list[int] = []
        self.limits: list[float] = []
        for name in ("memory_stats", "mem_get_info", "reset_peak_memory_stats", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", self.limit)
        monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "memory_snapshot", self.segments)
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

    def segments(self, mempool_id: Any = None, include_traces: bool = True) -> Any:
        assert not include_traces, "every one of thousands of recorded events would be written out, with its stack"
        return self.snapshot()["segments"]


def _segment(device: int) -> dict[str, Any]:
    return {"device": device, "blocks": [{"size": (device + 1) * MIB, "state": "inactive"}]}


@pytest.mark.parametrize(("local_rank", "device"), [(0, 0), (1, 1), (3, 0)])
def test_the_ranks_device_is_used_and_not_the_current_one(
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


def test_a_device_whose_context_is_broken_costs_the_numbers_and_not_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    SpokenTo(monkeypatch)
    statistics = CudaStatistics(None)
    watch = Watch(settings_of(Plan.parse("fp32-ddp-none-mb8x1"), 1, Device.CUDA), 0, None, HangRule(HangLimits()))
    watch.statistics = statistics
    assert watch.read() is not None

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    for name in ("mem_get_info", "memory_stats", "memory_snapshot"):
        monkeypatch.setattr(torch.cuda, name, broken)
    failure = of_exception(RuntimeError("CUDA error: device-side assert triggered"))
    report = report_of(watch.settings, Rank(0, 0, 1, 1, 0), watch, failure)
    assert (report.ending, report.message) == (Ending.ERROR, failure.message)
    assert report.memory.device_total_bytes == 40 * GIB, "what was read before"


def test_an_out_of_memory_stays_the_verdict_though_reporting_it_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    SpokenTo(monkeypatch)
    observers: list[Callable[..., None]] = []
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)

    def noticed(requested_bytes: int) -> None:
        raise KeyError(f"no frames for {requested_bytes}")

    CudaStatistics(None).when_out_of_memory(noticed)
    (observe,) = observers
    observe(0, 768, 40 * GIB, 0)  # what it raised, torch would raise in place of the out-of-memory
    assert "no frames for 768" in capsys.readouterr().err
