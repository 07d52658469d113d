"""The rendezvous of one rank that stands for all: a store that never waits for the others, who are not there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

_RANK = re.compile(r"\d+")


def install(ranks: int) -> None:
    """Make every way into `torch.distributed` that would meet other ranks meet this store."""
    distributed: Any = import_module("torch.distributed")
    if not distributed.is_available():
        return
    # torch asks a store of Python's for its methods by their names.
    store = type("LonelyStore", (LonelyStore, distributed.Store), {})(ranks)

    def meet(*_: Any, **__: Any) -> Iterator[tuple[Any, int, int]]:
        # The groups keep the C++ half of the store alone; this closure keeps the other half alive.
        yield store, int(os.environ["RANK"]), ranks

    # The package has a function of the same name.
    handlers: dict[str, Any] = import_module("torch.distributed.rendezvous")._rendezvous_handlers
    handlers.update(dict.fromkeys(("env", "tcp", "file"), meet))
    _replace_gloo()


def _replace_gloo() -> None:
    """Give torch's own `fake` backend to groups that ask for gloo, which would connect to each of the other ranks."""
    import_module("torch.testing._internal.distributed.fake_pg")  # registers it
    config: Any = import_module("torch.distributed.distributed_c10d").BackendConfig
    plain = config.get_device_backend_map

    def without_gloo(self: Any) -> dict[str, str]:
        backends: dict[str, str] = plain(self)
        return {device: "fake" if backend == "gloo" else backend for device, backend in backends.items()}

    config.get_device_backend_map = without_gloo


class LonelyStore:
    """Counters stand as if all ranks had counted; what another rank would have written is what this one wrote."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._ranks = ranks
        self._values: dict[str, bytes] = {}
        self._alike: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Keep a value, also for the keys of other ranks."""
        self._values[key] = self._alike[_RANK.sub("#", key)] = _bytes(value)

    def get(self, key: str) -> bytes:
        """What was set, by this rank for another one if need be."""
        return self._values.get(key, self._alike.get(_RANK.sub("#", key), b""))

    def add(self, key: str, amount: int) -> int:
        """Count for all ranks at once."""
        total = int(self._values.get(key, b"0")) + amount * self._ranks
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Whoever comes first wins, and that is always this rank."""
        return self._values.setdefault(key, _bytes(desired))

    def append(self, key: str, value: Any) -> None:
        """Add to a value."""
        self.set(key, self.get(key) + _bytes(value))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether this rank has set them."""
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:
        """All are there already, as far as anybody can tell."""

    def delete_key(self, key: str) -> bool:
        """Whether there was one."""
        return self._values.pop(key, None) is not None

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Several at once."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Several at once."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """`append`, `multi_get` and `multi_set` are there."""
        return True

    def num_keys(self) -> int:
        """How many are set."""
        return len(self._values)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
