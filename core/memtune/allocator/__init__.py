"""A model of PyTorch's CUDA caching allocator: what a sequence of requests allocates, reserves and wastes.

The rules are those of c10/cuda/CUDACachingAllocator.cpp in pytorch/pytorch; each rule names the function it was read
from. Prediction replays traces through it, the virtual GPU asks it for every tensor storage.

Left out, because no plan sets them: garbage_collection_threshold, roundup_power2_divisions, CUDA graphs' pools.
"""

from memtune.allocator.blocks import AllocatorSettings
from memtune.allocator.caching import CachingAllocator, OutOfMemory
from memtune.allocator.counters import Stats
from memtune.allocator.replay import Event, replay, required_bytes, surviving_bytes
from memtune.allocator.snapshot import BlockInfo, SegmentInfo

__all__ = [
    "AllocatorSettings",
    "BlockInfo",
    "CachingAllocator",
    "Event",
    "OutOfMemory",
    "SegmentInfo",
    "Stats",
    "replay",
    "required_bytes",
    "surviving_bytes",
]
