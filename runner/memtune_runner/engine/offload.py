"""Activation offload: tensors saved for the backward pass wait in host memory."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

_SMALLEST_BYTES = 1 << 20  # below this size a copy costs more time than it is worth

_Packed = torch.Tensor | tuple[torch.device, torch.Tensor]


class ActivationOffload(saved_tensors_hooks):
    """A context for forward passes. Unlike torch's ``save_on_cpu``, it leaves weights alone, which stay on the GPU."""

    def __init__(self, smallest_bytes: int = _SMALLEST_BYTES) -> None:
        self._smallest_bytes = smallest_bytes
        super().__init__(self._pack, _unpack)

    def _pack(self, tensor: torch.Tensor) -> _Packed:
        if _is_weight(tensor) or tensor.nbytes < self._smallest_bytes:
            return tensor
        # Pinned, for copies at full link speed.
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
        return tensor.device, host.copy_(tensor)


def _unpack(packed: _Packed) -> torch.Tensor:
    if isinstance(packed, torch.Tensor):
        return packed
    device, host = packed
    return host.to(device, non_blocking=True)


def _is_weight(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
