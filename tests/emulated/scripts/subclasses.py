"""A backward pass with weights of a tensor subclass that knows torch's method by itself, as those in 4 bits do."""

from typing import Any

import torch

unpack = torch.Tensor.to


class Packed(torch.Tensor):
    """Six numbers in a row, which `to` makes two rows of three."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Unpack, or do as any tensor."""
        if func is unpack:
            return torch.ones(2, 3, device="cuda")
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


class Product(torch.autograd.Function):
    """Unpacks the weights for each pass."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, weight: Packed) -> torch.Tensor:
        """Multiply."""
        context.save_for_backward(weight)
        return rows @ weight.to(rows.dtype).t()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Multiply back."""
        return gradients[0] @ context.saved_tensors[0].to(gradients[0].dtype), None


rows = torch.ones(4, 3, device="cuda", requires_grad=True)
weight = torch.zeros(6, device="cuda").as_subclass(Packed)
Product.apply(rows, weight).sum().backward()  # type: ignore[no-untyped-call]
assert rows.grad is not None
assert rows.grad.shape == rows.shape
