"""Computes small tensors for real whose numbers a constructor reads, such as drop path rates from `linspace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

# Covers tables but not weights.
_MOST_ELEMENTS = 4096
_MAKERS = frozenset({torch.tensor, torch.linspace, torch.logspace, torch.arange, torch.zeros, torch.ones, torch.full})
_READERS = frozenset({Tensor.item, Tensor.tolist, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__})


class KnownNumbers(TorchFunctionMode):
    """Recomputes small tensors made of nothing but numbers with real memory, and reads their values.

    Use it within a FakeTensorMode, around the construction of a model.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: Any = WeakTensorKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if not all(each in self._known for each in tensors) or not (tensors or func in _MAKERS):
            if tensors and (func.__name__.endswith("_") or func is Tensor.__setitem__):
                self._known.pop(tensors[0], None)  # changed by an unknown operation
            return func(*args, **kwargs)
        known_args, known_kwargs = tree_map_only(Tensor, self._known.__getitem__, (args, kwargs))
        known = _really(func, known_args, known_kwargs)
        if func in _READERS:
            return known
        result = func(*args, **kwargs)
        self._remember(result, known)
        return result

    def _remember(self, result: Any, known: Any) -> None:
        for fake, real in zip(tree_leaves(result), tree_leaves(known), strict=False):
            if isinstance(fake, Tensor) and isinstance(real, Tensor) and real.numel() <= _MOST_ELEMENTS:
                self._known[fake] = real


def _really(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the function's result on real tensors; None if it fails."""
    if "device" in kwargs:
        kwargs = {**kwargs, "device": "cpu"}
    try:
        with unset_fake_temporarily():
            return func(*args, **kwargs)
    except RuntimeError:
        return None
