"""Shortens long rows of identical blocks while they are recorded.

A row is a head, then a *period* of one or more blocks repeated, then a partial period. Six periods run: the first and
the last have other neighbours than the rest; the middle four show what all others do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

PERIODS = 6
_LONGEST_PERIOD = 8
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HOOKS = tuple(name for name in vars(nn.Module()) if name.endswith("_hooks"))


class Fold(NamedTuple):
    """A container's blocks: a head of ``start``, then periods of ``length``, of which ``left_out`` do not run."""

    container: nn.Module
    blocks: list[nn.Module]
    start: int
    length: int
    left_out: int


def folds_of(model: nn.Module, rows: Sequence[list[nn.Module]]) -> list[Fold]:
    """Return the rows that are long and regular enough to run only in part."""
    containers = {
        id(members[0]): each for each in model.modules() if _is_list(each) and (members := [*each.children()])
    }
    found = []
    for blocks in rows:
        container = containers[id(blocks[0])]
        candidates = (_fold(container, blocks, length) for length in range(1, min(_LONGEST_PERIOD, len(blocks)) + 1))
        found += [fold for fold in candidates if fold.left_out > 0][:1]
    return found


@contextmanager
def folded(folds: Sequence[Fold]) -> Iterator[None]:
    """Keep only the blocks that run in their containers."""
    whole = [fold.container._modules for fold in folds]
    for fold in folds:
        head = fold.start + PERIODS // 2 * fold.length
        kept = [*fold.blocks[:head], *fold.blocks[head + fold.left_out * fold.length :]]
        fold.container._modules = {str(place): block for place, block in enumerate(kept)}
    try:
        yield
    finally:
        for fold, modules in zip(folds, whole, strict=True):
            fold.container._modules = modules


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.Sequential))


def _fold(container: nn.Module, blocks: list[nn.Module], length: int) -> Fold:
    start = len(blocks) - length
    while start > 0 and _are_alike(blocks[start - 1], blocks[start - 1 + length], length):
        start -= 1
    return Fold(container, blocks, start, length, (len(blocks) - start) // length - PERIODS)


def _are_alike(first: nn.Module, second: nn.Module, distance: int) -> bool:
    """Whether two blocks are identical except for a number that gives their place in the row."""
    mine, others = dict(first.named_modules()), dict(second.named_modules())
    return list(mine) == list(others) and all(_are_equal(mine[name], others[name], distance) for name in mine)


def _are_equal(module: nn.Module, other: nn.Module, distance: int) -> bool:
    if type(module) is not type(other) or any(getattr(each, name) for each in (module, other) for name in _HOOKS):
        return False
    mine, others = _attributes(module), _attributes(other)
    return mine.keys() == others.keys() and all(_say_the_same(mine[name], others[name], distance) for name in mine)


def _attributes(module: nn.Module) -> dict[str, Any]:
    own = {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
    return {**own, **module._parameters, **module._buffers, "training": module.training}


def _say_the_same(mine: Any, other: Any, distance: int) -> bool:
    if isinstance(mine, torch.Tensor) and isinstance(other, torch.Tensor):
        return (mine.shape, mine.dtype, mine.requires_grad) == (other.shape, other.dtype, other.requires_grad)
    if type(mine) is int and type(other) is int:
        return other - mine in (0, distance)
    return mine is other or (type(mine) is type(other) and (mine == other) is True)
