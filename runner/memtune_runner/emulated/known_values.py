"""The values that are known on the emulated GPU, by storage.

`dispatch_mode` says which values are known, and keeps them up to date as operators run.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# The largest tensors that the CPU computes: of floating-point numbers, and of masks and indices.
MOST_FLOATS, _INTEGERS = 1 << 20, 1 << 24
_DEFAULT_FILL = 1.0
# Any memory: a type for each size would take longer to make than most operators.
_MEMORY = ctypes.c_char * sys.maxsize


class Known(NamedTuple):
    """The known values of a storage: with a ``fill`` all, of a ``kind``, equal it; otherwise they are in its memory."""

    is_true: bool
    fill: float | None = None
    kind: Any = None


class KnownValues:
    """The known values of each storage, for as long as it lives."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._expected: dict[int, list[Callable[[Known | None], Known | None]]] = {}

    def of(self, tensor: Any) -> Known | None:
        """Return what is known of a tensor, which for most is nothing; what other ranks send to it is waited for."""
        key = tensor.untyped_storage()._cdata
        for arrive in self._expected.pop(key, ()):
            self.put(tensor, arrive(self._known.get(key)))
        return self._known.get(key)

    def expect(self, tensor: Any, arrive: Callable[[Known | None], Known | None]) -> None:
        """Have a message arrive before anything is read of a tensor of which something is known."""
        self._expected.setdefault(tensor.untyped_storage()._cdata, []).append(arrive)

    def repeated_in(self, tensor: Any) -> tuple[float, Any] | None:
        """Return the number that fills a tensor's storage, and its type; None if the storage has numbers of its own.

        Where nothing is known, it is one of the tensor's type.
        """
        known = self.of(tensor)
        if known is None:
            return _DEFAULT_FILL, tensor.dtype
        return None if known.fill is None else (known.fill, known.kind)

    def fill_of(self, tensor: Any) -> float | None:
        """Return the single value of all elements; None if they are in memory, or bytes of numbers of another type."""
        repeated = self.repeated_in(tensor)
        return repeated[0] if repeated is not None and repeated[1] is tensor.dtype else None

    def put(self, tensor: Any, known: Known | None) -> None:
        """Record what is known of a tensor's storage from now on."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._expected.pop(key, None)
        if known is None:
            self._known.pop(key, None)
            return
        if known.fill is not None and known.kind is None:
            known = Known(known.is_true, known.fill, tensor.dtype)
        self._known[key] = known
        reference = self._references.get(key)
        if reference is None or reference() is not storage:

            def forget(_: object, key: int = key) -> None:
                self._known.pop(key, None)
                self._expected.pop(key, None)
                self._references.pop(key, None)

            self._references[key] = weakref.ref(storage, forget)

    def doubt(self) -> None:
        """Mark all values as not true; those in memory stay."""
        self._known = {key: known._replace(is_true=False) for key, known in self._known.items()}


def is_small(tensor: Any) -> bool:
    """Whether the CPU computes the tensor's values."""
    return bool(tensor.numel() <= (MOST_FLOATS if tensor.is_floating_point() or tensor.is_complex() else _INTEGERS))


def on_host(tensor: Any) -> Any:
    """Return the same memory of the emulated GPU as a CPU tensor."""
    import torch

    if not tensor.numel():
        return torch.empty_like(tensor, device="cpu")
    buffer = _MEMORY.from_address(tensor.data_ptr())
    if tensor.is_contiguous():
        return torch.frombuffer(buffer, dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return torch.frombuffer(buffer, dtype=tensor.dtype, count=reach).as_strided(tensor.shape, tensor.stride())


def repeated_as(tensor: Any, fill: float, kind: Any) -> Any:
    """Return a tensor's values on the host where one number of a ``kind`` fills its storage.

    In another type these are bytes of the number, and depend on where in it each begins.
    """
    import torch

    if kind is tensor.dtype:
        return torch.full((), fill, dtype=kind).expand(tensor.shape)
    period = max(kind.itemsize // tensor.itemsize, 1)
    strides, first = [stride % period for stride in tensor.stride()], tensor.storage_offset() % period
    last = first + sum(max(size - 1, 0) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    numbers = torch.full((math.ceil((last + 1) * tensor.itemsize / kind.itemsize),), fill, dtype=kind)
    return numbers.view(tensor.dtype).as_strided(tensor.shape, strides, first).contiguous()


def created_value(name: str, args: Sequence[Any], dtype: Any) -> float | None:
    """Return the value of all elements that a creation operator produces; None for other operators."""
    import torch

    if name in ("full", "new_full"):
        # Integer and boolean tensors convert the given value.
        return float(torch.full((), args[1 if name == "full" else 2], dtype=dtype))
    return {"zeros": 0.0, "new_zeros": 0.0, "ones": 1.0, "new_ones": 1.0}.get(name)


def uniform_result(name: str, fill: float, shrink: float) -> float | None:
    """Return the result of reducing equal elements, of which ``shrink`` go into each result."""
    if name in ("sum", "nansum", "count_nonzero"):
        return fill * shrink if name != "count_nonzero" else (shrink if fill else 0)
    if name in ("linalg_vector_norm", "norm"):
        return abs(fill) * math.sqrt(shrink)
    if name in ("any", "all", "max", "min", "amax", "amin", "mean", "median"):
        return fill
    return None


def balanced_choice(shape: Sequence[int], choices: int) -> Any:
    """Return indices that choose each of ``choices`` equally often, as a router trained with a balancing loss."""
    import torch

    total = math.prod(shape)
    return (torch.arange(total) % max(choices, 1)).reshape(tuple(shape))
