"""Keeps the optimizer kernel (fused, foreach) of the current plan when a checkpoint is loaded.

The checkpoint's kernel would undo a plan that changes it, and not every sharding supports every kernel.
"""

from __future__ import annotations

from typing import Any

_NAMES = ("fused", "foreach")


def keep_kernel(optimizer: Any) -> None:
    """Let an optimizer load all but its kernel from a checkpoint. torch moves the states where they are needed."""
    optimizer.register_load_state_dict_pre_hook(_with_own_kernel)


def _with_own_kernel(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    saved = [dict(group) for group in state["param_groups"]]
    # If their numbers differ, torch raises a better error.
    for group, own in zip(saved, optimizer.param_groups, strict=False):
        group.update({name: own[name] for name in _NAMES if name in own})
    return {**state, "param_groups": saved}
