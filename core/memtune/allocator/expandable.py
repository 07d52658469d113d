"""Expandable segments: one range of addresses per pool that grows page by page ("Note [Expandable Segments]").

The pages are 2 MiB in the small pool and 20 MiB in the large one. Segments start at a multiple of their page, so that
page borders follow from the address alone. An unmapped block always covers whole pages.
"""

from __future__ import annotations

from bisect import insort

from memtune.allocator.blocks import (
    LARGE_SEGMENT_BYTES,
    SMALL_SEGMENT_BYTES,
    UNLIMITED_BYTES,
    Block,
    Pool,
    merge_free,
    round_up,
)
from memtune.allocator.device import DeviceModel

# The address space of one segment on a device without a limit: 1 PiB.
_UNLIMITED_SPAN_BYTES = 1 << 50


def page_bytes(pool: Pool) -> int:
    return SMALL_SEGMENT_BYTES if pool.is_small else LARGE_SEGMENT_BYTES


def grow(pool: Pool, size: int, device: DeviceModel) -> Block | None:
    """Map pages until a free block of ``size`` bytes exists, take it out of its pool and return it.

    None if the device has no memory left (try_allocate_expandable_block). Pages mapped before that stay mapped and
    free.
    """
    block = _lowest_room(pool, size) or _new_segment(pool, device)
    if block.state == "unmapped" and not _map(block, min(size, block.size), device):
        return None
    while block.size < size:
        following = block.following
        # _lowest_room only returns a block whose run of free and unmapped neighbours is long enough; mapped neighbours
        # are merged at once, so what follows a free block of that run is unmapped.
        if following is None or not _map(following, min(size - block.size, following.size), device):
            return None
        block = following
    pool.remove(block)
    return block


def release(pool: Pool, device: DeviceModel) -> None:
    """Unmap every page that holds only free bytes (the expandable part of release_blocks)."""
    for block in pool.blocks():
        _unmap(block, device)
        if block.state == "unmapped" and block.is_whole_segment:
            pool.unmapped.remove(block)


def _lowest_room(pool: Pool, size: int) -> Block | None:
    """The lowest free or unmapped block from which ``size`` bytes of addresses are usable (find_expandable_block)."""
    for block in pool.unmapped:
        preceding = block.preceding
        start = preceding if preceding is not None and preceding.state == "free" else block
        if _usable_bytes(start, size) >= size:
            return start
    return None


def _usable_bytes(start: Block, enough: int) -> int:
    total = 0
    block: Block | None = start
    while block is not None and total < enough and block.state in ("free", "unmapped"):
        total += block.size
        block = block.following
    return total


def _new_segment(pool: Pool, device: DeviceModel) -> Block:
    """Address space for 9/8 of the device, since unmapped pages leave holes."""
    page = page_bytes(pool)
    limit = device.limit_bytes
    span = _UNLIMITED_SPAN_BYTES if limit == UNLIMITED_BYTES else limit + limit // 8
    span = max(round_up(span, page), page)
    segment = Block(device.addresses(span, page), span, pool, "unmapped")
    _add_unmapped(pool, segment)
    return segment


def _map(block: Block, size: int, device: DeviceModel) -> bool:
    """Map memory to the pages of an unmapped block's first ``size`` bytes (map_block)."""
    pool = block.pool
    mapped = round_up(size, page_bytes(pool))
    if not device.give(mapped):
        return False
    pool.unmapped.remove(block)
    if mapped < block.size:
        _add_unmapped(pool, block.cut(mapped, "unmapped"))
    merge_free(block)
    pool.add(block)
    return True


def _unmap(block: Block, device: DeviceModel) -> None:
    """Unmap the whole pages within a free block (unmap_block)."""
    pool = block.pool
    page = page_bytes(pool)
    start = round_up(block.address, page)
    end = (block.address + block.size) // page * page
    if start >= end:
        return
    pool.remove(block)
    if end < block.address + block.size:
        pool.add(block.cut(end - block.address, "free"))
    if start > block.address:
        rest = block.cut(start - block.address, "unmapped")
        pool.add(block)
        block = rest
    device.take_back(block.size)
    block.state = "unmapped"
    _merge_unmapped(block)
    _add_unmapped(pool, block)


def _merge_unmapped(block: Block) -> None:
    pool = block.pool
    preceding, following = block.preceding, block.following
    if preceding is not None and preceding.state == "unmapped":
        pool.unmapped.remove(preceding)
        block.absorb_preceding(preceding)
    if following is not None and following.state == "unmapped":
        pool.unmapped.remove(following)
        block.absorb_following(following)


def _add_unmapped(pool: Pool, block: Block) -> None:
    insort(pool.unmapped, block, key=lambda other: other.address)
