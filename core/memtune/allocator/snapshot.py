"""Memory snapshot: the segments and their blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memtune.allocator.blocks import Block, State


@dataclass(frozen=True)
class BlockInfo:
    address: int
    size_bytes: int
    requested_bytes: int
    state: State


@dataclass(frozen=True)
class SegmentInfo:
    """One range of addresses from the device; for an expandable segment including the unmapped rest."""

    address: int
    stream: int
    is_small: bool
    blocks: tuple[BlockInfo, ...]


def segments_of(blocks: Iterable[Block]) -> list[SegmentInfo]:
    """Follow the links from each segment's first block; a segment without any memory is left out."""
    first = {block.address: block for block in blocks if block.preceding is None and not _is_bare(block)}
    return [_segment(first[address]) for address in sorted(first)]


def _is_bare(block: Block) -> bool:
    return block.state == "unmapped" and block.is_whole_segment


def _segment(first: Block) -> SegmentInfo:
    infos = []
    block: Block | None = first
    while block is not None:
        in_use = block.state in ("allocated", "pending")
        infos.append(BlockInfo(block.address, block.size, block.requested if in_use else 0, block.state))
        block = block.following
    return SegmentInfo(first.address, first.pool.stream, first.pool.is_small, tuple(infos))
