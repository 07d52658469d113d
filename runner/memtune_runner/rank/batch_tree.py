"""Walks the tensors of a nested batch: tuples, lists, and mappings of any class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

_Change = Callable[[str, torch.Tensor], torch.Tensor]


def columns(batch: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors with the names that their mappings give them."""
    for each in tree_leaves(batch, is_leaf=_is_mapping):
        if _is_mapping(each):
            for inner, value in each.items():
                yield from columns(value, str(inner))
        elif isinstance(each, torch.Tensor):
            yield name if each is batch else "", each


def changed(batch: Any, change: _Change, name: str = "") -> Any:
    """Return the batch with its tensors changed. Mappings keep their class, unlike with torch's pytree."""

    def of_leaf(each: Any) -> Any:
        if _is_mapping(each):
            return _changed_mapping(each, change)
        return change(name if each is batch else "", each) if isinstance(each, torch.Tensor) else each

    return tree_map(of_leaf, batch, is_leaf=_is_mapping)


def _changed_mapping(mapping: Any, change: _Change) -> Any:
    made = copy(mapping)
    for name, each in mapping.items():
        if (value := changed(each, change, str(name))) is not each:
            made[name] = value
    return made


def _is_mapping(each: Any) -> bool:
    return callable(getattr(type(each), "items", None))
