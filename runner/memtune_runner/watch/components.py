"""Attributes this rank's memory to components (weights, optimizer states, ...) after an out-of-memory."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from memtune.wire.report import ReportedComponent

WEIGHTS, GRADIENTS, STATES, MASTERS = "weights", "gradients", "optimizer states", "master weights"
ACTIVATIONS = "activations and others"


def largest_components(allocated_bytes: int, device_type: str) -> tuple[ReportedComponent, ...]:
    """Return the components of the allocated bytes under the names that predictions use, largest first.

    Everything but weights, gradients and optimizer states counts as activations.
    """
    parameters, optimizers = _alive()
    groups = [group for each in optimizers for group in each.param_groups]
    stepped = [each for group in groups for each in group["params"]]
    states = [state for each in optimizers for state in each.state.values()]
    seen: set[int] = set()
    sizes = {
        WEIGHTS: _size_bytes((_data(each) for each in parameters), device_type, seen),
        GRADIENTS: _size_bytes((each.grad for each in [*parameters, *stepped]), device_type, seen),
        STATES: _size_bytes(_tensors(states), device_type, seen),
        MASTERS: _size_bytes(stepped, device_type, seen),
    }
    sizes[ACTIVATIONS] = max(allocated_bytes - sum(sizes.values()), 0)
    found = [ReportedComponent(name, size_bytes) for name, size_bytes in sizes.items() if size_bytes]
    return tuple(sorted(found, key=lambda each: -each.size_bytes))


def _alive() -> tuple[list[torch.nn.Parameter], list[torch.optim.Optimizer]]:
    # By type, not isinstance, which would evaluate the properties of proxy objects in the script.
    objects = [(each, type(each)) for each in gc.get_objects()]
    parameters = [each for each, kind in objects if issubclass(kind, torch.nn.Parameter)]
    optimizers = [each for each, kind in objects if issubclass(kind, torch.optim.Optimizer)]
    # A wrapper around an optimizer has no groups until it is ready.
    return parameters, [each for each in optimizers if hasattr(each, "param_groups") and hasattr(each, "state")]


def _data(parameter: Any) -> Any:
    """Return what this rank holds of a parameter: under ZeRO-3, its partition."""
    return getattr(parameter, "ds_tensor", parameter)


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _size_bytes(tensors: Iterable[Any], device_type: str, seen: set[int]) -> int:
    """Return the tensors' bytes on the device, counting each storage once."""
    size_bytes = 0
    for each in tensors:
        tensor = getattr(each, "_local_tensor", each)  # a DTensor's local shard
        if tensor is None or tensor.device.type != device_type:
            continue
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            size_bytes += storage.nbytes()
    return size_bytes
