"""Hooks a model's modules, blocks, calls and gradients, and reports them to a recorder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_iter

from memtune.wire import trace as events

_OUTSIDE = "the code around the model"


class Numbers:
    """The numbers of a model's modules, blocks and weights when no block is left out."""

    def __init__(self, model: nn.Module, rows: Iterable[Iterable[nn.Module]]) -> None:
        named = list(model.named_modules())
        self.names = [_OUTSIDE, *(name or type(model).__name__ for name, _ in named)]
        self.modules = {module: number for number, (_, module) in enumerate(named, 1)}
        self.blocks = {block: number for number, block in enumerate(block for row in rows for block in row)}
        self.weight_names = [name for name, _ in model.named_parameters()]
        self.weights = {weight: number for number, weight in enumerate(model.parameters())}


class Listener(Protocol):
    """The protocol that the hooks report to."""

    module: int

    def note(self, code: str, number: int) -> None:
        """Record an event."""

    def enter(self, block: int, given: Any) -> None:
        """Record the call of a block with its inputs."""

    def record_gradient(self, number: int, weight: torch.Tensor) -> None:
        """Record a weight's gradient."""


@contextmanager
def followed(model: nn.Module, numbers: Numbers, listener: Listener) -> Iterator[None]:
    """Report the model's events to the listener."""
    handles: list[Any] = []
    for module in model.modules():
        handles += _follow(module, numbers.modules[module], numbers.blocks.get(module), listener)
    handles += _follow_calls(model, listener)
    for weight in model.parameters():
        if weight.requires_grad:
            hook = _GradientHook(listener, numbers.weights[weight])
            handles.append(weight.register_post_accumulate_grad_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def tensors_of(output: Any) -> Iterator[torch.Tensor]:
    """Yield the input or output tensors that FSDP2 would find (torch/distributed/fsdp/_common_utils.py)."""
    for each in tree_iter(output):
        if isinstance(each, torch.Tensor):
            yield each
        elif is_dataclass(each):
            yield from tensors_of([getattr(each, field.name) for field in fields(each)])


def _follow(module: nn.Module, number: int, block: int | None, listener: Listener) -> list[Any]:
    before: list[int] = []

    def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
        before.append(listener.module)
        listener.module = number
        if block is not None:
            listener.enter(block, (args, kwargs))

    def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
        if block is not None:
            listener.note(events.LEAVE, block)
        listener.module = before.pop()

    return [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave),
    ]


def _follow_calls(model: nn.Module, listener: Listener) -> list[Any]:
    """Hook the model's call and return, and the moment when the backward pass reaches its output."""

    def call(*_: Any) -> None:
        listener.note(events.CALL, 0)

    def returned(_module: nn.Module, _args: Any, output: Any) -> None:
        listener.note(events.RETURN, 0)
        hook = _OutputHook(listener)
        for each in tensors_of(output):
            if each.requires_grad:
                each.register_hook(hook)

    return [model.register_forward_pre_hook(call), model.register_forward_hook(returned)]


class _OutputHook:
    """Records the first gradient of one call's output."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._is_reached = False

    def __call__(self, _gradient: torch.Tensor) -> None:
        if not self._is_reached:
            self._is_reached = True
            self._listener.note(events.REACHED, 0)


class _GradientHook:
    def __init__(self, listener: Listener, number: int) -> None:
        self._listener, self._number = listener, number

    def __call__(self, weight: torch.Tensor) -> None:
        self._listener.record_gradient(self._number, weight)
