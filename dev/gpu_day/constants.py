"""Measures the constants of the memory model in a dedicated process; prints one line of JSON."""

from __future__ import annotations

import json

import torch
from gpu_measure import end

_WIDTH = 1024


def measured() -> dict[str, object]:
    """The constants of this GPU with this torch and driver."""
    properties = torch.cuda.get_device_properties(0)
    torch.empty(1, device="cuda")
    context_bytes = _outside_bytes()
    forward_bytes, backward_bytes = _workspaces()
    return {
        "product": properties.name,
        "capability": list(torch.cuda.get_device_capability()),
        "usable_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "context_bytes": context_bytes,
        "context_bytes_with_kernels": _outside_bytes(),
        "workspace_bytes_of_the_forward_pass": forward_bytes,
        "workspace_bytes_of_the_backward_pass": backward_bytes,
    }


def _outside_bytes() -> int:
    """The bytes that the driver counts outside the caching allocator."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def _workspaces() -> tuple[int, int]:
    """The cuBLAS workspaces in the allocator: one of the main thread and one of the autograd thread."""
    weight = torch.zeros(_WIDTH, _WIDTH, device="cuda", dtype=torch.float16, requires_grad=True)
    size = weight.untyped_storage().nbytes()
    before = torch.cuda.memory_allocated()
    product = weight @ weight
    forward_bytes = torch.cuda.memory_allocated() - before - size
    before = torch.cuda.memory_allocated()
    product.backward(torch.ones_like(product))
    return forward_bytes, torch.cuda.memory_allocated() - before - size  # the gradient


if __name__ == "__main__":
    print(json.dumps(measured()))
    end(0)
