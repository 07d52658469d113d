"""The tensors among an operator's arguments and results."""

from __future__ import annotations

from typing import Any

import torch


def tensors_of(values: Any) -> list[torch.Tensor]:
    """The tensors in plain containers: torch's pytree, which knows others, takes longer than many an operator."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return []
    found = []
    for each in values:
        if isinstance(each, torch.Tensor):
            found.append(each)
        elif isinstance(each, (tuple, list, dict)):
            found += tensors_of(each)
    return found
