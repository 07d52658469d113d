"""Activation checkpointing under a plan: repeated blocks drop their activations and recompute them.

Random states are preserved, so a recomputed dropout drops the same elements. Weights keep their names, so checkpoints
of plans with different checkpointing are compatible. Apply it before anything else wraps the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint as torch_checkpoint
from torch.utils.checkpoint import checkpoint, noop_context_fn

from memtune.plans.knobs import Checkpointing
from memtune_runner.engine.blocks import repeated_blocks
from memtune_runner.engine.selective_checkpointing import restore_linear, selective_contexts

# The argument of a transformers model's forward pass that asks for a cache of keys and values.
_CACHE = "use_cache"


def set_checkpointing(model: nn.Module, checkpointing: Checkpointing) -> None:
    """Checkpoint a model that a Trainer, accelerate or Lightning trains, overriding the script and the library."""
    for each in model.modules():  # a library's model may be a part of the script's
        switch_off_own(each)
    apply(model, checkpointing)


def apply(model: nn.Module, checkpointing: Checkpointing) -> int:
    """Checkpoint the repeated blocks of a model and nothing else; return their number."""
    switch_off_own(model)
    if checkpointing.mode == "none":
        return 0
    rows = repeated_blocks(model)
    if not rows:
        raise ValueError(
            f"checkpointing {checkpointing} works on the repeated blocks of a model, and {type(model).__name__} has "
            "none: no ModuleList or Sequential of several modules of one class; use a plan with checkpointing none"
        )
    _use_no_cache(model)
    if checkpointing.mode == "selective":
        restore_linear()
    for row in rows:
        if checkpointing.mode == "every":
            for first in range(0, len(row), checkpointing.every):
                _Segment(row[first : first + checkpointing.every])
        else:
            for block in row:
                _checkpoint(block, selective_contexts if checkpointing.mode == "selective" else noop_context_fn)
    return sum(map(len, rows))


def _use_no_cache(model: nn.Module) -> None:
    """Switch off a transformers model's cache: a recomputed block would append to it a second time.

    Between forward passes its config stays as it is: it is saved with the weights, and later generation uses it.
    """
    of_transformers = [each for each in model.modules() if hasattr(getattr(each, "config", None), _CACHE)]
    names = {each: list(inspect.signature(each.forward).parameters) for each in of_transformers}
    taking = [each for each in of_transformers if _CACHE in names[each]]
    for each in taking:
        each.register_forward_pre_hook(partial(_without_cache, names[each].index(_CACHE)), with_kwargs=True)
    if of_transformers and not taking:  # code of a model's own may ask its config alone
        _SwitchedOff([each.config for each in of_transformers]).during(model)


def _without_cache(
    place: int, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a forward pass without a cache, unless a caller asks for it where nothing is recomputed."""
    is_recomputed, given = torch.is_grad_enabled(), args[place] if len(args) > place else kwargs.get(_CACHE)
    if given is not None and not is_recomputed:
        return args, kwargs
    if len(args) > place:
        return (*args[:place], False, *args[place + 1 :]), kwargs
    return args, {**kwargs, _CACHE: False}


class _SwitchedOff:
    """The caches of configs, switched off during a model's forward passes and put back after each."""

    def __init__(self, configs: list[Any]) -> None:
        self._configs = list({id(config): config for config in configs}.values())
        self._before: list[list[Any]] = []  # of each forward pass that runs: one may call another

    def during(self, model: nn.Module) -> None:
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end, always_call=True)

    def _begin(self, *_: Any) -> None:
        self._before.append([getattr(config, _CACHE) for config in self._configs])
        for config in self._configs:
            setattr(config, _CACHE, False)

    def _end(self, *_: Any) -> None:
        if self._before:
            for config, value in zip(self._configs, self._before.pop(), strict=True):
                setattr(config, _CACHE, value)


def switch_off_own(model: nn.Module) -> None:
    """Turn off a transformers model's own checkpointing, overriding the script and the library."""
    # The name since transformers 5, and the one before.
    for name in ("activation_checkpointing_disable", "gradient_checkpointing_disable"):
        if hasattr(model, name):
            getattr(model, name)()
            return


def _checkpoint(block: nn.Module, context_fn: Callable[[], Any]) -> None:
    inner = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return inner(*args, **kwargs)
        # Recomputation must stop early (torch's default): otherwise, at its end, ZeRO-3 would free the weights of the
        # last layer, which are about to be used.
        return checkpoint(inner, *args, use_reentrant=False, context_fn=context_fn, **kwargs)

    block.forward = forward


class _Segment:
    """Several consecutive blocks that are recomputed together, from the input of the first.

    The model calls its blocks itself, so hooks begin and end the segment. torch does this for a single module
    (torch.distributed._composable.checkpoint), with the same generator.
    """

    def __init__(self, blocks: list[nn.Module]) -> None:
        self._blocks = blocks
        self._is_replaying = False
        self._clear()
        for block in blocks:
            block.register_forward_pre_hook(self._before, with_kwargs=True)
            block.register_forward_hook(self._after, always_call=True)

    def _clear(self) -> None:
        self._generator: Generator[None, None, None] | None = None
        self._extras: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._hidden = 0

    def _before(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_replaying or not torch.is_grad_enabled():
            return
        if block is self._blocks[0]:
            self._begin(args)
        elif not args or _address(args[0]) != self._hidden:
            raise ValueError(
                f"checkpointing several layers at once needs {type(block).__name__} to take the result of the one "
                "before it as its first argument; use a plan with checkpointing full"
            )
        self._extras.append((args[1:], kwargs))

    def _begin(self, args: tuple[Any, ...]) -> None:
        self._clear()
        self._generator = _generator(partial(self._replay, self._extras), args)
        next(self._generator)

    def _after(self, block: nn.Module, _args: Any, output: Any) -> None:
        if self._is_replaying or self._generator is None:
            return
        self._hidden = _address(_first(output))
        if block is self._blocks[-1] or output is None:
            generator = self._generator
            self._clear()
            next(generator, None)

    def _replay(self, extras: list[tuple[tuple[Any, ...], dict[str, Any]]], *args: Any) -> None:
        self._is_replaying = True
        try:
            hidden = args[0]
            for block, (others, kwargs) in zip(self._blocks, extras, strict=True):
                hidden = _first(block(hidden, *others, **kwargs))
        finally:
            self._is_replaying = False


def _generator(replay: Callable[..., None], args: tuple[Any, ...]) -> Generator[None, None, None]:
    """Return the generator behind ``checkpoint(use_reentrant=False)``. It is private, and its signature changes."""
    begin: Callable[..., Generator[None, None, None]] = torch_checkpoint._checkpoint_without_reentrant_generator
    parameters = inspect.signature(begin).parameters
    if parameters["args"].kind is not inspect.Parameter.VAR_POSITIONAL:
        return begin(replay, args, {})
    options: tuple[Any, ...] = (True, noop_context_fn, "default", False)
    if "early_stop" in parameters:  # since torch 2.9
        options += (True,)
    return begin(replay, *options, *args)


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _address(hidden: Any) -> int:
    """Return the address of a tensor's data: wrappers pass on aliases instead of the tensor itself."""
    return hidden.data_ptr() if isinstance(hidden, torch.Tensor) else 0
