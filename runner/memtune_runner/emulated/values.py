"""Follows which values on the emulated GPU are known, so that what a script reads from it makes sense.

No kernel computes anything there. A tensor's values are therefore one of three:

- true: everything that they follow from came from the host and is small enough, so they are computed on the CPU, into
  the memory of the emulated GPU (which is ordinary memory). The real operator runs first: allocations stay exact;
- made up: they follow from something that was never computed, and are consistent with one another. What was never
  computed counts as uniform, filled with ones unless operators on such tensors gave another number;
- absent: nobody knows them, and they count as ones.

Reading a value is noted with its line. The mode stands aside during the backward pass: under any mode torch adds up
gradients out of place, which would take memory that no GPU run takes. What checkpointing recomputes is followed again.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

TRUE, MADE_UP = "true", "made up"
# The most elements that the CPU computes for: of floating point numbers, and of masks and indices.
_FLOATS, _INTEGERS = 1 << 20, 1 << 24
_DEFAULT_FILL = 1.0
_OURS = str(Path(__file__).parent.parent)


class Known(NamedTuple):
    """What is known of a storage. Without a ``fill`` its values are in its memory; else all of them are that."""

    is_true: bool
    fill: float | None = None


class Reads:
    """Where the script looked at values of the GPU."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, int, str]] = Counter()

    def note(self, is_true: bool) -> None:
        """The script reads a value now."""
        frame = sys._getframe(1)
        while frame.f_back is not None and _is_library(frame.f_code.co_filename):
            frame = frame.f_back
        self._times[frame.f_code.co_filename, frame.f_lineno, TRUE if is_true else MADE_UP] += 1

    def report(self) -> list[dict[str, Any]]:
        """The places, the most frequent first."""
        return [
            {"file": file, "line": line, "value": value, "times": times}
            for (file, line, value), times in self._times.most_common()
        ]


def _is_library(file: str) -> bool:
    return file.startswith((_OURS, "<")) or "/torch/" in file or "/contextlib.py" in file


class Book:
    """What is known of each storage, as long as it lives."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._references: dict[int, weakref.ref[Any]] = {}

    def of(self, tensor: Any) -> Known | None:
        """What is known of a tensor; nothing is known of most."""
        return self._known.get(tensor.untyped_storage()._cdata)

    def fill_of(self, tensor: Any) -> float | None:
        """The one value of all elements, or None if they are in memory."""
        known = self.of(tensor)
        return _DEFAULT_FILL if known is None else known.fill

    def put(self, tensor: Any, known: Known | None) -> None:
        """Say what is known of a tensor's storage from now on."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if known is None:
            self._known.pop(key, None)
            return
        self._known[key] = known
        reference = self._references.get(key)
        if reference is None or reference() is not storage:

            def forget(_: object, key: int = key) -> None:
                self._known.pop(key, None)
                self._references.pop(key, None)

            self._references[key] = weakref.ref(storage, forget)

    def doubt(self) -> None:
        """Nothing is true any more; what is in memory stays."""
        self._known = {key: known._replace(is_true=False) for key, known in self._known.items()}


class Values:
    """Follows values while the script runs."""

    def __init__(self) -> None:
        self.reads = Reads()

    def report(self) -> list[dict[str, Any]]:
        """Where the script looked."""
        return self.reads.report()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow from here on; torch has been imported."""
        from memtune_runner.emulated.aside import standing_aside
        from memtune_runner.emulated.following import Following

        mode = Following(self.reads)
        with standing_aside(mode), mode:
            yield


def is_small(tensor: Any) -> bool:
    """Whether the CPU computes for it."""
    return bool(tensor.numel() <= (_FLOATS if tensor.is_floating_point() or tensor.is_complex() else _INTEGERS))


def on_host(tensor: Any) -> Any:
    """The same elements of the emulated GPU's memory, as a tensor of the CPU."""
    import torch

    if not tensor.numel():
        return torch.empty_like(tensor, device="cpu")
    storage = tensor.untyped_storage()
    buffer = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    shared = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    view = torch.empty(0, dtype=tensor.dtype)
    return view.set_(shared, tensor.storage_offset(), tensor.size(), tensor.stride())


def created_value(name: str, args: Sequence[Any], dtype: Any) -> float | None:
    """What all elements are that an operator makes from nothing but their number; None of any other operator."""
    import torch

    if name in ("full", "new_full"):
        # A tensor of whole numbers or of truth values holds another value than the one that was given.
        return float(torch.full((), args[1 if name == "full" else 2], dtype=dtype))
    return {"zeros": 0.0, "new_zeros": 0.0, "ones": 1.0, "new_ones": 1.0}.get(name)


def uniform_result(name: str, fill: float, shrink: float) -> float | None:
    """What a reduction of equal elements gives; ``shrink`` elements go into each result."""
    if name in ("sum", "nansum", "count_nonzero"):
        return fill * shrink if name != "count_nonzero" else (shrink if fill else 0)
    if name in ("linalg_vector_norm", "norm"):
        return abs(fill) * math.sqrt(shrink)
    if name in ("any", "all", "max", "min", "amax", "amin", "mean", "median"):
        return fill
    return None


def balanced_choice(shape: Sequence[int], choices: int) -> Any:
    """Indices that choose each of so many equally often, as a router with a balancing loss is trained to do."""
    import torch

    total = math.prod(shape)
    return (torch.arange(total) % max(choices, 1)).reshape(tuple(shape))
