"""Calls the user's model factory, ``module:function``, under fake tensors.

It returns a model; a model and a batch; or a model, a batch and a loss. A batch is tensors whose first dimension is the
micro-batch, or a function from a number of rows to such tensors. A loss is a function of model and batch. Its
parameters ``micro_batch`` and ``sequence_length`` are filled in. A Hugging Face ``config.json`` can replace it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from memtune_runner.rank.failure_causes import missing_module
from memtune_runner.tracing.adaptations import usual_values
from memtune_runner.tracing.computed_constants import KnownNumbers
from memtune_runner.tracing.described_model import from_config
from memtune_runner.tracing.trace_errors import TracingError, unbuilt

_AT_IMPORT = "what needs a GPU or data belongs into functions, not on the module's top level"
_AT_CALL = "the factory must build its model without a GPU and without data"


class Subject(NamedTuple):
    """The traced objects: a model, and functions for its batches and its loss."""

    model: nn.Module
    batch: Callable[[int], Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]


def find(name: str) -> Callable[..., Any]:
    """Import the function named ``module:function``."""
    if name.endswith(".json"):
        return from_config(name)
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise TracingError(f"factory {name!r}: write it as module:function, like train:build, or give a config.json")
    try:
        module = import_module(module_name)
    except BaseException as error:
        missing = missing_module(error)
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise TracingError(
                f"factory {name!r}: there is no module {missing}; let it be in the working directory or on PYTHONPATH"
            ) from None
        raise unbuilt(f"factory {name!r}: importing {module_name}", error, _AT_IMPORT) from error
    factory = getattr(module, function_name, None)
    if not callable(factory):
        raise TracingError(f"factory {name!r}: {module_name} has no function {function_name}")
    return factory  # type: ignore[no-any-return]  # whatever the user's module holds


def _words(name: str) -> str:
    return "the config" if name.endswith(".json") else f"factory {name!r}"


def build(
    name: str, factory: Callable[..., Any], rows: int, sequence_length: int, arguments: Mapping[str, Any] | None = None
) -> Subject:
    """Call the factory with the user's arguments and MemTune's."""
    given = {"micro_batch": rows, "sequence_length": sequence_length}
    signature = inspect.signature(factory)
    taken = {key: value for key, value in given.items() if key in signature.parameters}
    try:
        called = signature.bind(**taken, **(arguments or {}))
    except TypeError as error:
        raise TracingError(
            f"{_words(name)} cannot be called: {error}; it gets micro_batch and sequence_length if it has parameters "
            "so named, and a job's model.factoryArguments; anything else needs a default"
        ) from None
    try:
        with KnownNumbers(), usual_values():
            result = factory(*called.args, **called.kwargs)
    except TracingError:
        raise
    except BaseException as error:
        raise unbuilt(_words(name), error, _AT_CALL) from error
    model, *rest = result if isinstance(result, tuple) and result else (result,)
    if not isinstance(model, nn.Module) or len(rest) > 2:
        raise TracingError(
            f"factory {name!r} returned {type(result).__name__}; it must return a model, (model, batch), or "
            "(model, batch, loss)"
        )
    batch = rest[0] if rest else _tokens(name, model, sequence_length)
    loss = _checked(name, rest[1]) if len(rest) > 1 else _own_loss
    return Subject(model, batch if callable(batch) else _repeated(name, batch), loss)


def _tokens(name: str, model: nn.Module, sequence_length: int) -> Callable[[int], Any]:
    """Return a function that makes training tokens for a Hugging Face model."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "vocab_size"):
        raise TracingError(
            f"{_words(name)} returned a {type(model).__name__} alone, and what goes into it is unknown; return "
            "(model, batch), with a batch of tensors or a function that makes one of a number of rows"
        )

    def batch(rows: int) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(rows, sequence_length, dtype=torch.long)
        return {"input_ids": tokens, "labels": torch.zeros_like(tokens)}

    return batch


def _repeated(name: str, example: Any) -> Callable[[int], Any]:
    """Return a function that makes batches of any number of rows from an example."""
    found: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, found.append, example)
    rows = {each.shape[0] for each in found if each.dim()}
    if not found:
        raise TracingError(
            f"factory {name!r} returned a batch without tensors ({type(example).__name__}); return tensors whose first "
            "dimension is the micro-batch, or a function that makes them of a number of rows"
        )
    if len(rows) != 1:
        raise TracingError(
            f"factory {name!r} returned a batch whose tensors do not agree on a first dimension ({sorted(rows)}); "
            "return a function that makes the batch of a number of rows"
        )
    return lambda count: tree_map_only(torch.Tensor, lambda t: t.new_zeros(count, *t.shape[1:]), example)


def _checked(name: str, loss: Any) -> Callable[[nn.Module, Any], torch.Tensor]:
    """Wrap the factory's loss with a check of its result."""

    def refuse(given: object, what: str) -> TracingError:
        kind = f"a tensor of shape {tuple(given.shape)}" if isinstance(given, torch.Tensor) else type(given).__name__
        return TracingError(
            f"factory {name!r} returned {what.format(kind)}; loss(model, batch) must return one number, as a tensor"
        )

    if not callable(loss):
        raise refuse(loss, "{} as its loss")

    def checked(model: nn.Module, batch: Any) -> torch.Tensor:
        result = loss(model, batch)
        if not isinstance(result, torch.Tensor) or result.numel() != 1:
            raise refuse(result, "a loss that gives {}")
        return result

    return checked


def _own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the loss that the model computes itself, as Hugging Face models do."""
    output = model(**batch) if isinstance(batch, Mapping) else model(*batch) if _is_row(batch) else model(batch)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TracingError(
            f"{type(model).__name__} gives no loss; let the factory return (model, batch, loss), where loss(model, "
            "batch) is one number"
        )
    if isinstance(output, Mapping):
        # A training loop's variable keeps the other outputs, above all the logits, until the next micro-batch.
        held = [value for value in output.values() if value is not loss]
        loss.held_by_the_loop = held  # type: ignore[attr-defined]  # tensors take attributes; it goes with the loss
    return loss


def _is_row(batch: Any) -> bool:
    return isinstance(batch, (tuple, list))
