"""Random numbers that are not drawn on the host: those of large weights, which the emulated GPU would not copy anyway.

A script that makes a model of seven billion weights before it moves them would need 28 GB and a minute for numbers
that nobody reads. Their memory stays untouched, and is counted as if it had been filled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class UnfilledWeights:
    """The host's tensors whose random numbers were left out, for as long as they live or until others are written."""

    def __init__(self, resident_bytes: Callable[[], int]) -> None:
        self._resident_bytes = resident_bytes
        self._sizes: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._peak_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def has(self, tensor: Any) -> bool:
        """Whether nothing was written to a tensor. Only dense ones have a storage."""
        return bool(self._sizes) and not tensor.is_sparse and tensor.untyped_storage()._cdata in self._sizes

    @property
    def peak_bytes(self) -> int:
        """The most that the process would have had, while there were any."""
        self._look()
        return self._peak_bytes

    def leave(self, tensor: Any) -> None:
        """Count a tensor that was to be filled."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self._references[key] = weakref.ref(storage, lambda _: self._forget(key))
            self._look()

    def written(self, tensors: list[Any]) -> None:
        """Count tensors no more of whose memory most is written now."""
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if tensor.nbytes > self._sizes.get(key, 0) // 2:
                self._forget(key)

    def _forget(self, key: int) -> None:
        if key in self._sizes:
            self._look()
            del self._sizes[key], self._references[key]

    def _look(self) -> None:
        if self._sizes:
            self._peak_bytes = max(self._peak_bytes, self._resident_bytes() + sum(self._sizes.values()))
