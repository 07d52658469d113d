"""Records for ZeRO-3 when modules need their own weights and what frozen products keep.

From deepspeed/runtime/zero (parameter_offload.py, linear.py) of 0.19: weights are gathered before a module's forward
pass and before the first gradient of its output, and released after either pass. The backward pass of a module ends
when the gradients of its inputs are there. A product keeps its input even if its weight is frozen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_iter, tree_map_only

from memtune.plans.deepspeed_config import PERSISTENT_ELEMENTS
from memtune.wire import trace as events
from memtune_runner.tracing.adaptations import replaced
from memtune_runner.tracing.recorder import Recorder


@contextmanager
def sharded_weights(model: nn.Module, recorder: Recorder, numbers: Mapping[nn.Parameter, int]) -> Iterator[None]:
    """Follow modules with sharded weights of their own, and products with frozen weights."""
    with ExitStack() as stack:
        for module in model.modules():
            own = [each for each in module.parameters(recurse=False) if each.numel() > PERSISTENT_ELEMENTS]
            followed = _Followed(recorder, sorted(numbers[each] for each in own))
            stack.callback(module.register_forward_pre_hook(followed.begin).remove)
            stack.callback(module.register_forward_hook(followed.end).remove)
        stack.enter_context(replaced(functional, "linear", partial(_product, recorder, functional.linear)))
        yield


class _Followed:
    """Follows the forward and backward pass of a module."""

    def __init__(self, recorder: Recorder, weights: list[int]) -> None:
        self._recorder, self._weights = recorder, weights

    def begin(self, _module: nn.Module, args: Any) -> Any:
        """Begin the forward pass; route the module's inputs through a function that sees their gradients."""
        self.come()
        return tree_map_only(torch.Tensor, _Call(self).given, args) if self._weights else None

    def end(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """End the forward pass."""
        self.go()
        for each in tree_iter(output):
            if isinstance(each, torch.Tensor) and each.requires_grad:
                each.register_hook(self._reached)

    def _reached(self, _gradient: torch.Tensor) -> None:
        self.come()

    def come(self) -> None:
        """Record that a pass reaches the module."""
        for weight in self._weights:
            self._recorder.note(events.NEED, weight)
        if not self._weights:
            self._recorder.note(events.MODULE, 0)

    def go(self) -> None:
        """Record that a pass leaves the module."""
        for weight in self._weights:
            self._recorder.note(events.SPARE, weight)


class _Call:
    """Detects when the gradients of all inputs of a call are there."""

    def __init__(self, followed: _Followed) -> None:
        self._followed = followed
        self._missing = 0

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad or not torch.is_grad_enabled():
            return tensor
        self._missing += 1
        passed: torch.Tensor = _Given.apply(self, tensor)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return passed

    def gradient(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._followed.go()


class _Given(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, tensor: torch.Tensor) -> torch.Tensor:
        ctx.call = call
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.call.gradient()
        return None, *gradients


def _product(
    recorder: Recorder,
    linear: Any,
    input: torch.Tensor,  # noqa: A002  # it may be given by this name
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> Any:
    learns = input.requires_grad or (bias is not None and bias.requires_grad)
    # Autocast casts the weight, so the product is not the model's own.
    is_plain = not is_traceable_wrapper_subclass_type(type(weight)) and not torch.is_autocast_enabled("cpu")
    if weight.requires_grad or not learns or not torch.is_grad_enabled() or not is_plain:
        return linear(input, weight, bias)
    return _Product.apply(recorder, linear, input, weight, bias)  # type: ignore[no-untyped-call]  # as above


class _Product(torch.autograd.Function):
    """A product with a frozen weight that records what stage 3 does with its input."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, linear: Any, *operands: Any) -> Any:
        given, weight, _bias = operands
        ctx.recorder = recorder
        ctx.save_for_backward(weight)
        product = linear(*operands)
        ctx.kept = recorder.keep(given)
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        (weight,) = ctx.saved_tensors
        if ctx.kept is not None:
            ctx.recorder.ask_for(ctx.kept)
        *_, of_given, _of_weight, of_bias = ctx.needs_input_grad
        to_given = gradient.matmul(weight) if of_given else None
        to_bias = gradient.sum(tuple(range(gradient.dim() - 1))) if of_bias else None
        ctx.kept = None
        return None, None, to_given, None, to_bias
