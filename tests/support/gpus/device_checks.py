"""Tests for virtual and real GPUs alike: tests/contract runs them here, tests/gpu on CUDA."""

from __future__ import annotations

from pathlib import Path

import torch
from launches import Launch, Place, own_python
from oom_recovery import Trainer

from memtune.units import GIB, MIB
from memtune.wire.report import Device, Ending, Memory
from memtune_runner.device.statistics import CudaStatistics, Statistics

_VARYING = Path(__file__).parents[1] / "programs" / "varying_lengths.py"


def memory_of_varying_lengths(place: Place, device: Device, expandable: bool) -> Memory:
    """Memory of batches of ever new lengths, with or without expandable segments."""
    variables = {
        "MEMTUNE_PLAN": f"fp32-ddp-none-mb1x1{'-exp' if expandable else ''}",
        "MEMTUNE_DEVICE": str(device),
        "MEMTUNE_GPU_MEMORY_BYTES": str(4 * GIB),
    }
    report = place.run(own_python(), str(_VARYING), variables=variables).report
    assert report.ending is Ending.SUCCEEDED, report.message
    return report.memory


def fragmentation(memory: Memory) -> float:
    """1 - peak active / peak reserved."""
    assert memory.peak_active_bytes is not None
    assert memory.peak_reserved_bytes
    return 1 - memory.peak_active_bytes / memory.peak_reserved_bytes


def expandable_segments_fragment_less(place: Place, device: Device) -> None:
    """Expandable segments hold the same batches in fewer bytes."""
    plain, expandable = (memory_of_varying_lengths(place, device, each) for each in (False, True))
    assert fragmentation(plain) > fragmentation(expandable) + 0.05, (plain, expandable)
    assert 0 <= fragmentation(expandable) < 0.2


def memory_table_after_oom(train: Trainer, directory: Path) -> tuple[Launch, str]:
    """A launch that ran out of memory, and the table with its report."""
    failed = train(directory, train.large, 1, variables={"GPU_MEMORY_BYTES": str(train.little_bytes)})
    assert failed.report.ending is Ending.DEVICE_OOM, failed.stdout + failed.stderr
    table = (failed.directory / "memory-rank-0.txt").read_text()
    assert "activations and others" in table
    return failed, table


def counters_follow(statistics: Statistics, device: torch.device) -> None:
    """Every counter follows the caching allocator's rules for tensors of known sizes."""
    torch.empty(1, device=device)  # the device is in use from here on
    statistics.reset_peaks()
    before = statistics.read()
    assert before is not None
    kept = torch.empty(30 * MIB, dtype=torch.uint8, device=device)
    torch.empty(24 * MIB, dtype=torch.uint8, device=device)
    now = statistics.read()
    assert now is not None
    assert now.allocated_bytes - before.allocated_bytes == kept.numel()
    assert now.peak_allocated_bytes - before.allocated_bytes == kept.numel() + 24 * MIB
    # Beyond 10 MiB a request has its own segment, in steps of 2 MiB; freed memory stays reserved.
    assert now.reserved_bytes - before.reserved_bytes == 30 * MIB + 24 * MIB
    assert statistics.largest_free_block_bytes() >= 24 * MIB
    assert (now.retries, now.ooms) == (before.retries, before.ooms)
    assert 0 < now.reserved_bytes + (now.non_torch_bytes or 0) <= now.total_bytes
    statistics.reset_peaks()
    again = statistics.read()
    assert again is not None
    assert again.peak_allocated_bytes == again.allocated_bytes == now.allocated_bytes


def counters_of_cuda_follow() -> None:
    """The same on the first CUDA device, in a process that has not used it yet."""
    counters_follow(CudaStatistics(None), torch.device("cuda", 0))
