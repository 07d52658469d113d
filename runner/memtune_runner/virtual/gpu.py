"""The virtual GPU: CPU tensors, counted as on a CUDA device of a given size.

Temporaries inside an operator are not counted: the CPU uses another algorithm, so they say nothing about HBM.
Everything that outlives one operator is counted.

Two things are counted that a GPU would not hold. Under any dispatch mode torch adds gradients out of place
(isTensorSubclassLike in ATen/TensorSubclassLikeUtils.h), so where several meet in one tensor, one more may be alive at
the peak. And host memory that the training thread computes with, such as a batch being assembled, cannot be
distinguished from the GPU's, which is why plans with an offload are refused.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from memtune.allocator import AllocatorOutOfMemory, AllocatorSettings, CachingAllocator
from memtune.units import GIB, KIB, MIB
from memtune_runner.rank.tensors import tensors_of
from memtune_runner.virtual import attention as virtual_attention

_STATISTICS = ("allocated_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes", "reserved_bytes")


class _Entry(NamedTuple):
    """A live storage and its block. The weakref is kept so that it can fire."""

    storage: weakref.ref[torch.UntypedStorage]
    size_bytes: int
    handle: int


class VirtualGpu(TorchDispatchMode):
    """Counts every CPU storage that an operator of this thread touches, for as long as it lives.

    Use it as a context around the training script. Over the budget it raises ``torch.OutOfMemoryError`` in CUDA's
    words. ``budget_from_step`` lets a rehearsal shrink the budget: ``{3: GIB}`` leaves 1 GiB after three steps (step 0:
    at once), and frees cached memory, which would hide the loss.
    """

    _active: VirtualGpu | None = None

    def __init__(
        self,
        budget_bytes: int,
        settings: AllocatorSettings | None = None,
        budget_from_step: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves the base class untyped
        self._budget_from_step = dict(budget_from_step or {})
        self._budget_bytes = self._budget_from_step.get(0, budget_bytes)
        self._allocator = CachingAllocator(self._budget_bytes, settings)
        self.expandable_segments = settings is not None and settings.expandable_segments
        self._steps = 0
        self._entries: dict[int, _Entry] = {}
        self._dead: deque[int] = deque()
        self.out_of_memory_noticed: Callable[[int], None] | None = None

    @property
    def budget_bytes(self) -> int:
        """The size of the GPU, which may shrink between steps."""
        return self._budget_bytes

    def __enter__(self) -> VirtualGpu:
        if VirtualGpu._active is not None:
            raise RuntimeError("a virtual GPU is active already; leave it first, two would count every tensor twice")
        VirtualGpu._active = self
        # FSDP2 frees and regrows its unsharded parameters by resizing their storage, which no dispatch mode sees.
        torch.UntypedStorage.resize_ = self._resizing()  # type: ignore[method-assign]  # see above: no other way in
        functional.scaled_dot_product_attention = virtual_attention.attention  # type: ignore[assignment]  # options go on
        super().__enter__()  # type: ignore[no-untyped-call]  # as above
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]  # as above
        del torch.UntypedStorage.resize_  # restores the inherited method
        functional.scaled_dot_product_attention = virtual_attention.plain
        VirtualGpu._active = None

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if types and any(is_traceable_wrapper_subclass_type(each) for each in types):
            return NotImplemented  # DTensor and others unwrap first; their plain tensors arrive here later
        result = func(*args, **kwargs) if kwargs else func(*args)
        # Not tensors_of for all of them: most are tensors and numbers, and this is a good part of a small operator.
        for each in (*args, *kwargs.values(), result) if kwargs else (*args, result):
            if isinstance(each, torch.Tensor):
                self._see(each)
            elif isinstance(each, (tuple, list, dict)):
                for one in tensors_of(each):
                    self._see(one)
        return result

    def step_ended(self) -> None:
        """End an optimizer step; the next one may have another budget."""
        self._steps += 1
        budget_bytes = self._budget_from_step.get(self._steps)
        if budget_bytes is not None:
            print(f"memtune: rehearsal: the virtual GPU has {_size(budget_bytes)} from here on", file=sys.stderr)
            self.empty_cache()
            self._budget_bytes = budget_bytes
            self._allocator.set_limit(budget_bytes)

    def memory_stats(self) -> dict[str, int]:
        """Return the counters under the names of ``torch.cuda.memory_stats``."""
        self._forget_dead()
        stats = self._allocator.stats()
        counters = {"num_alloc_retries": stats.retries, "num_ooms": stats.ooms}
        for name in _STATISTICS:
            counters[f"{name}.all.current"] = getattr(stats, name)
            counters[f"{name}.all.peak"] = getattr(stats, f"peak_{name}")
        return counters

    def reset_peak_memory_stats(self) -> None:
        """Start new peaks, as ``torch.cuda.reset_peak_memory_stats`` does."""
        self._forget_dead()
        self._allocator.reset_peak()

    def largest_free_block_bytes(self) -> int:
        """Return the size of the largest free cached block."""
        self._forget_dead()
        return self._allocator.stats().largest_free_block_bytes

    def empty_cache(self) -> None:
        """Return unused segments to the device, as ``torch.cuda.empty_cache`` does."""
        self._forget_dead()
        self._allocator.empty_cache()

    def _see(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            for part in _parts(tensor):
                self._see(part)
            return
        storage = tensor.untyped_storage()
        if self._dead:
            self._forget_dead()
        entry, size_bytes = self._entries.get(storage._cdata), storage.nbytes()
        if entry is not None:
            if entry.size_bytes != size_bytes:
                self._track(storage, size_bytes)
                self._allocator.free(entry.handle)
        # The storage of a fake tensor, which claims to be on the CPU, is not.
        elif tensor.device.type == storage.device.type == "cpu":
            self._track(storage, size_bytes)

    def _track(self, storage: torch.UntypedStorage, size_bytes: int) -> None:
        key, dead = storage._cdata, self._dead
        handle = self._allocate(size_bytes)
        # The callback may run at any point, even within the allocator, so it only takes a note.
        self._entries[key] = _Entry(weakref.ref(storage, lambda _: dead.append(key)), size_bytes, handle)

    def _forget_dead(self) -> None:
        # Deferred but never too late: no allocation comes between a death and this, so every peak is exact.
        while self._dead:
            self._allocator.free(self._entries.pop(self._dead.popleft()).handle)

    def _resizing(self) -> Any:
        inherited = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size_bytes: int) -> Any:
            self._forget_dead()
            entry = self._entries.get(storage._cdata)
            if entry is None or entry.size_bytes == size_bytes:
                return inherited(storage, size_bytes)
            self._track(storage, size_bytes)
            resized = inherited(storage, size_bytes)
            self._allocator.free(entry.handle)
            return resized

        return resize_

    def _allocate(self, size_bytes: int) -> int:
        try:
            return self._allocator.allocate(size_bytes)
        except AllocatorOutOfMemory as error:
            message = _cuda_message(error, self._budget_bytes)
        if self.out_of_memory_noticed is not None:
            self.out_of_memory_noticed(size_bytes)
        raise torch.OutOfMemoryError(message)


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the strided tensors that make up a sparse tensor."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()  # an opaque oneDNN tensor, a layout that only the CPU has


def _cuda_message(error: AllocatorOutOfMemory, budget_bytes: int) -> str:
    """Format the message of CUDACachingAllocator.cpp (pytorch/pytorch), which scripts and tools match."""
    free_bytes = max(budget_bytes - error.reserved_bytes, 0)
    cached_bytes = error.reserved_bytes - error.allocated_bytes
    return (
        f"CUDA out of memory. Tried to allocate {_size(error.requested_bytes)}. GPU 0 has a total capacity of "
        f"{_size(budget_bytes)} of which {_size(free_bytes)} is free. Of the allocated memory "
        f"{_size(error.allocated_bytes)} is allocated by PyTorch, and {_size(cached_bytes)} is reserved by PyTorch "
        "but unallocated. (This GPU is virtual.)"
    )


def _size(size_bytes: int) -> str:
    for unit_bytes, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes > unit_bytes:
            return f"{size_bytes / unit_bytes:.2f} {unit}"
    return f"{size_bytes} bytes"
