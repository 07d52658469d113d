"""Finds a model's repeated blocks, the units of checkpointing and of FSDP's gathering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn


def repeated_blocks(model: nn.Module) -> list[list[nn.Module]]:
    """Return the rows of blocks of a model, each in execution order; empty if the model repeats nothing.

    A row is a ModuleList or Sequential whose members are of one class and have submodules. The outer one of nested rows
    counts if most of its members are built alike. So the layers count and not their experts, but in a vision model,
    whose stages differ in width, the layers of each stage count.
    """
    return list(_rows(model))


def _rows(module: nn.Module) -> Iterator[list[nn.Module]]:
    if _is_row(module):
        yield list(module.children())
        return
    for child in module.children():
        yield from _rows(child)


def _is_row(module: nn.Module) -> bool:
    members = list(module.children())
    if not isinstance(module, (nn.ModuleList, nn.Sequential)) or len(members) < 2:
        return False
    if len({type(each) for each in members}) > 1 or not any(members[0].children()):
        return False
    return Counter(map(_build, members)).most_common(1)[0][1] * 2 > len(members)


def _build(module: nn.Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(each.shape)) for name, each in module.named_parameters())
