"""A model of PyTorch's CUDA caching allocator: what a sequence of requests allocates, reserves and wastes.

The rules are those of c10/cuda/CUDACachingAllocator.cpp in pytorch/pytorch; each rule names its function there.
Prediction replays traces through the model, and the virtual GPU uses it for every tensor storage.

The constants agree with c10/core/AllocatorConfig.h of torch 2.13 (kSmallBuffer, kMinBlockSize, kSmallSize,
kMinLargeAlloc, kRoundLarge, and the defaults of large_segment_size and max_non_split_rounding_size).

Of PYTORCH_ALLOC_CONF, expandable_segments and max_split_size_mb are modelled. A plan sets no other option, and a user's
own value of these makes the model differ from the run:

- garbage_collection_threshold: releases cached blocks by age before the device is full.
- roundup_power2_divisions: rounds requests up further than to 512 bytes.
- large_segment_size_mb, max_non_split_rounding_mb: assumed to be their default of 20 MiB.
- per_process_memory_fraction: see the limit of `CachingAllocator`.
- backend:cudaMallocAsync: the driver's pool instead of this allocator.

Also not modelled: the private pools of CUDA graphs and torch.cuda.MemPool, and callbacks that free memory on demand.
"""

from memtune.allocator.blocks import AllocatorSettings
from memtune.allocator.caching import AllocatorOutOfMemory, CachingAllocator
from memtune.allocator.counters import Stats
from memtune.allocator.replay import Event, replay, required_bytes, surviving_bytes
from memtune.allocator.snapshot import BlockInfo, SegmentInfo

__all__ = [
    "AllocatorOutOfMemory",
    "AllocatorSettings",
    "BlockInfo",
    "CachingAllocator",
    "Event",
    "SegmentInfo",
    "Stats",
    "replay",
    "required_bytes",
    "surviving_bytes",
]
