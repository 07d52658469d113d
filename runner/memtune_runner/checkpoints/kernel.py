"""The kernel of an optimizer is its plan's choice: a checkpoint brings along that of the plan that it was saved under.

Taking it over would undo a rung that changes the kernel, and not every sharding has the kernel of every other.
"""

from __future__ import annotations

from typing import Any

_NAMES = ("fused", "foreach")


def keep_kernel(optimizer: Any) -> None:
    """Let an optimizer take all from a checkpoint but its kernel. torch puts the states where the kernel needs them."""
    optimizer.register_load_state_dict_pre_hook(_with_own_kernel)


def _with_own_kernel(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    saved = [dict(group) for group in state["param_groups"]]
    # If they are not as many, torch has a better sentence for it.
    for group, own in zip(saved, optimizer.param_groups, strict=False):
        group.update({name: own[name] for name in _NAMES if name in own})
    return {**state, "param_groups": saved}
