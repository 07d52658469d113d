"""Memory counters of a device, with one interface for CUDA's caching allocator and the virtual GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import torch

from memtune.units import MIB
from memtune_runner.rank.memory_counters import Reading
from memtune_runner.virtual.gpu import VirtualGpu

# A GPU sold as 80 GB reports 79.1 GiB. A declared size above this share of the true one means the whole device.
_WHOLE_DEVICE = 0.9
# The viewer shows the latest events; blocks in use keep their lines in any case.
_RECORDED_EVENTS = 50_000
# Leave recorded events out where torch can: there are thousands, each with its stack.
_WITHOUT_EVENTS: dict[str, Any] = (
    {"include_traces": False} if "include_traces" in signature(torch.cuda.memory_snapshot).parameters else {}
)
# The order of magnitude of a library's handle with its loaded kernels.
_HANDLE_BYTES = 512 * MIB


class Statistics(Protocol):
    """The memory counters of a device."""

    device_type: str

    def read(self) -> Reading | None:
        """Return all counters; None before the device is used and after it stops answering."""

    def reset_peaks(self) -> None:
        """Start new peaks."""

    def largest_free_block_bytes(self) -> int:
        """The largest piece that a request could get without new memory from the device. Costs more than a reading."""

    def has_expandable_segments(self) -> bool | None:
        """Whether the allocator has any expandable segment; None while it has none at all."""

    def free_bytes(self) -> int | None:
        """Return the memory left for libraries that bypass torch; None if the device does not answer."""

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""

    def when_out_of_memory(self, noticed: Callable[[int], None]) -> None:
        """Register a callback with the bytes of a failed request, called before anything is freed."""

    def forward_began(self, micro_steps: int) -> None:
        """Tell the device that a training forward pass begins, after so many micro-batches of its step."""

    def step_ended(self, micro_steps: int, is_disturbed: bool) -> None:
        """Tell the device that an optimizer step of so many micro-batches, or also an evaluation or save, has ended."""

    def counted_seconds(self) -> float | None:
        """Return how long a step takes by what it asks of the device, where clocks do not tell; None if unknown."""

    def record_sites(self) -> None:
        """Start recording which line of code allocates which bytes."""

    def dump(self, path: Path) -> Mapping[str, Any]:
        """Return the full memory snapshot, and write it to a file for torch's viewer."""


class CudaStatistics:
    """Counters of this rank's CUDA device, read through torch. The script may make another device current.

    ``limit_bytes`` is what the run may use of a larger device, such as a MIG slice whose driver reports more; ``share``
    is its part of that on a device used by several processes. Everything beyond does not count towards the total.
    """

    device_type = "cuda"

    def __init__(self, limit_bytes: int | None, share: float | None = None, local_rank: int = 0) -> None:
        self._limit_bytes, self._share, self._local_rank = limit_bytes, share, local_rank
        self._device, self._fraction = 0, 1.0
        torch.cuda._lazy_call(self._begin)  # torch defers such calls until a device is in use

    def _begin(self) -> None:
        # A script that selects its device initializes CUDA with it, and this runs afterwards. A script that shows each
        # rank a single device has done so by now.
        self._device = self._local_rank if self._local_rank < torch.cuda.device_count() else 0
        self._fraction = fraction_of(torch.cuda.mem_get_info(self._device)[1], self._limit_bytes, self._share)
        if self._fraction < 1:
            torch.cuda.set_per_process_memory_fraction(self._fraction, self._device)

    def read(self) -> Reading | None:
        if not torch.cuda.is_initialized():
            return None
        try:
            stats = torch.cuda.memory_stats(self._device)
            free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        except RuntimeError:  # after an error that breaks its context, a device answers nothing else
            return None
        outside_bytes = max(total_bytes - free_bytes - stats.get("reserved_bytes.all.current", 0), 0)
        return _reading(stats, round(total_bytes * self._fraction), outside_bytes if self._share is None else None)

    def reset_peaks(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def largest_free_block_bytes(self) -> int:
        try:
            segments = self._own(torch.cuda.memory_snapshot(**_WITHOUT_EVENTS))
        except RuntimeError:  # as above
            return 0
        blocks = (block for segment in segments for block in segment["blocks"])
        return max((int(block["size"]) for block in blocks if block["state"] == "inactive"), default=0)

    def has_expandable_segments(self) -> bool | None:
        try:
            segments = self._own(torch.cuda.memory_snapshot(**_WITHOUT_EVENTS)) if torch.cuda.is_initialized() else []
        except RuntimeError:  # as above
            return None
        return any(segment["is_expandable"] for segment in segments) if segments else None

    def free_bytes(self) -> int | None:
        try:
            return int(torch.cuda.mem_get_info(self._device)[0]) if torch.cuda.is_initialized() else None
        except RuntimeError:  # as above
            return None

    def synchronize(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize(self._device)

    def when_out_of_memory(self, noticed: Callable[[int], None]) -> None:
        def observe(_: int, requested_bytes: int, *__: int) -> None:
            try:
                noticed(requested_bytes)
            except Exception as error:  # torch would raise it in place of the out-of-memory
                print(f"memtune: cannot list what holds the memory: {error!r}", file=sys.stderr, flush=True)

        def attach() -> None:
            torch._C._cuda_attach_out_of_memory_observer(observe)  # type: ignore[attr-defined]  # in CUDA builds only

        torch.cuda._lazy_call(attach)

    def forward_began(self, micro_steps: int) -> None:
        """Do nothing: clocks tell."""

    def step_ended(self, micro_steps: int, is_disturbed: bool) -> None:
        """Do nothing: a real GPU needs no notice."""

    def counted_seconds(self) -> float | None:
        """Return None: on a GPU clocks tell."""
        return None

    def record_sites(self) -> None:
        torch.cuda._lazy_call(
            lambda: torch.cuda.memory._record_memory_history(stacks="python", max_entries=_RECORDED_EVENTS)
        )

    def dump(self, path: Path) -> Mapping[str, Any]:
        with suppress(OSError):  # the code that writes the tables beside it reports the error
            torch.cuda.memory._dump_snapshot(str(path))
        snapshot: Mapping[str, Any] = torch.cuda.memory._snapshot()
        return {**snapshot, "segments": self._own(snapshot["segments"])}

    def _own(self, segments: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the segments of this rank's device; torch lists all that the process uses."""
        return [segment for segment in segments if segment["device"] == self._device]


class VirtualStatistics:
    """Counters of a virtual GPU."""

    device_type = "cpu"

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu

    def read(self) -> Reading | None:
        return _reading(self._gpu.memory_stats(), self._gpu.budget_bytes, 0)

    def reset_peaks(self) -> None:
        self._gpu.reset_peak_memory_stats()

    def largest_free_block_bytes(self) -> int:
        return self._gpu.largest_free_block_bytes()

    def has_expandable_segments(self) -> bool | None:
        return self._gpu.expandable_segments

    def free_bytes(self) -> int | None:
        """Return None: no library takes memory of a virtual GPU."""
        return None

    def synchronize(self) -> None:
        """Do nothing: a virtual GPU is synchronous."""

    def when_out_of_memory(self, noticed: Callable[[int], None]) -> None:
        self._gpu.out_of_memory_noticed = noticed

    def forward_began(self, micro_steps: int) -> None:
        """Do nothing: nothing is counted."""

    def step_ended(self, micro_steps: int, is_disturbed: bool) -> None:
        self._gpu.step_ended()

    def counted_seconds(self) -> float | None:
        """Return None: nothing is counted."""
        return None

    def record_sites(self) -> None:
        """Do nothing: a virtual GPU knows no lines of code."""

    def dump(self, path: Path) -> Mapping[str, Any]:
        return {}


def is_full(statistics: Statistics) -> bool:
    """Whether a library may have found no memory for its handle."""
    free_bytes = statistics.free_bytes()
    return free_bytes is not None and free_bytes < _HANDLE_BYTES


def fraction_of(total_bytes: int, limit_bytes: int | None, share: float | None) -> float:
    """Return the part of a device that a run may use. A limit counts if it is clearly below the total: labels are
    rounded."""
    limited = limit_bytes is not None and limit_bytes < _WHOLE_DEVICE * total_bytes
    return (limit_bytes / total_bytes if limited and limit_bytes else 1.0) * (share or 1.0)


def _reading(stats: Mapping[str, Any], total_bytes: int, non_torch_bytes: int | None) -> Reading:
    def counter(name: str) -> int:
        return int(stats.get(name, 0))

    return Reading(
        total_bytes=total_bytes,
        allocated_bytes=counter("allocated_bytes.all.current"),
        active_bytes=counter("active_bytes.all.current"),
        reserved_bytes=counter("reserved_bytes.all.current"),
        inactive_split_bytes=counter("inactive_split_bytes.all.current"),
        peak_allocated_bytes=counter("allocated_bytes.all.peak"),
        peak_active_bytes=counter("active_bytes.all.peak"),
        peak_reserved_bytes=counter("reserved_bytes.all.peak"),
        peak_inactive_split_bytes=counter("inactive_split_bytes.all.peak"),
        non_torch_bytes=non_torch_bytes,
        retries=counter("num_alloc_retries"),
        ooms=counter("num_ooms"),
    )
