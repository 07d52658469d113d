"""Selective checkpointing: recomputing a block reuses its costly results from the forward pass.

It fits torch's ``checkpoint(context_fn=...)``. torch's own ``create_selective_checkpoint_contexts`` counts every
operator in a block, so the two passes differ under ZeRO-3, which gathers weights at any time. This one counts only the
operators that it keeps.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

PRODUCTS = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten._scaled_mm.default})
ATTENTION = frozenset(
    {
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    }
)

_Kept = defaultdict[Any, deque[Any]]
_CHANGED = (
    "a matrix product or attention result was changed in place, so it cannot stand for its recomputation; "
    "use a plan with checkpointing full"
)


def selective_contexts() -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """Return the contexts of a block's forward pass and of its recomputation."""
    kept: _Kept = defaultdict(deque)
    return _SavingMode(kept), _ReusingMode(kept)


def restore_linear() -> None:
    """Restore torch's linear layer where DeepSpeed has replaced it.

    Stage 3 replaces it for the whole process, including later models. DeepSpeed's version adds its bias in place to the
    product that is to be kept.
    """
    zero: Any = sys.modules.get("deepspeed.runtime.zero.partition_parameters")
    if zero is not None and functional.linear is zero.zero3_linear_wrap:
        functional.linear = zero.InsertPostInitMethodToModuleSubClasses.linear_bk


class _Result:
    """A kept tensor, with its version counter at that time."""

    def __init__(self, tensor: torch.Tensor) -> None:
        # As in torch.utils.checkpoint: detached, so that the graph does not hold itself, but with a shared version
        # counter, which must be requested below autograd.
        with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
            self._tensor = tensor.detach()
        self._version = self._tensor._version

    def get(self) -> torch.Tensor:
        """Return the tensor; raise if it was changed in place."""
        if self._tensor._version != self._version:
            raise RuntimeError(_CHANGED)
        return self._tensor

    @property
    def storage(self) -> int:
        """The identity of the tensor's memory."""
        return _storage(self._tensor)


class _Chooser(TorchDispatchMode):
    """Selects attention and every second matrix product, as torchtitan does (apply_ac)."""

    def __init__(self, kept: _Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves the base class untyped
        self._kept = kept
        self._products = 0

    def _keeps(self, operator: Any) -> bool:
        if operator in PRODUCTS:
            self._products += 1
            return self._products % 2 == 1
        return operator in ATTENTION


class _SavingMode(_Chooser):
    def __init__(self, kept: _Kept) -> None:
        super().__init__(kept)
        self._storages: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # The version counter misses changes behind a matmul of more than two dimensions, whose result is an alias with
        # a counter of its own (_unsafe_view).
        if func._schema.is_mutable and _storage(args[0]) in self._storages:
            raise RuntimeError(_CHANGED)
        result = func(*args, **(kwargs or {}))
        if self._keeps(func):
            kept = tree_map_only(torch.Tensor, _Result, result)
            self._storages.update(each.storage for each in tree_leaves(kept) if isinstance(each, _Result))
            self._kept[func].append(kept)
        return result


class _ReusingMode(_Chooser):
    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._keeps(func):
            return tree_map_only(_Result, _Result.get, self._kept[func].popleft())
        return func(*args, **(kwargs or {}))


def _storage(changed: Any) -> int:
    return changed.untyped_storage()._cdata if isinstance(changed, torch.Tensor) else 0
