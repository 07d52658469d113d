"""The order of training samples, so that a resumed run continues after the consumed samples under any plan.

Epochs follow each other without a gap, each in its own order, and an optimizer step takes the next ``global_batch``
samples of that one sequence. It depends on neither micro-batch nor world.
"""

from __future__ import annotations

from collections.abc import Iterator

_ROUNDS = 4
_WORD = (1 << 64) - 1


def batches(
    dataset_len: int, global_batch: int, seed: int, samples_done: int = 0, rank: int = 0, world: int = 1
) -> Iterator[list[int]]:
    """Yield this rank's samples of each optimizer step endlessly, starting after ``samples_done``."""
    if dataset_len < 1:
        raise ValueError("the data set is empty; there is no order of nothing")
    if global_batch % world:
        raise ValueError(f"a global batch of {global_batch} cannot be divided among {world} ranks")
    share = global_batch // world
    start = samples_done + rank * share
    while True:
        yield [sample_at(position, dataset_len, seed) for position in range(start, start + share)]
        start += global_batch


def sample_at(position: int, dataset_len: int, seed: int) -> int:
    """The sample at this position, counted from the start of the training."""
    epoch, index = divmod(position, dataset_len)
    return _permuted(index, dataset_len, _mixed(seed ^ _mixed(epoch + 1)))


def _permuted(index: int, length: int, key: int) -> int:
    """The place of ``index`` in a pseudorandom order of ``length`` items, without computing the others.

    A Feistel network permutes a power of four; an index outside the range is permuted again until it is inside (Black
    and Rogaway, Ciphers with arbitrary finite domains, 2002).
    """
    half_bits = max((length - 1).bit_length() + 1, 2) // 2
    mask = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & mask
        for number in range(_ROUNDS):
            left, right = right, left ^ (_mixed((key + number) ^ (right << 8)) & mask)
        index = (left << half_bits) | right
        if index < length:
            return index


def _mixed(value: int) -> int:
    """splitmix64's finisher (Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)
