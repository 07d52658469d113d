"""The rendezvous of one rank that stands for all: a store that never waits for other ranks."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from inspect import signature
from typing import Any

_RANK = re.compile(r"\d+")
# The value that the first rank of a group would have set for the others: the id of an NCCL communicator, 128 bytes.
_NCCL_ID = bytes([1]) * 128


def install(ranks: int) -> None:
    """Make every rendezvous of `torch.distributed` use this store."""
    distributed: Any = import_module("torch.distributed")
    if not distributed.is_available():
        return
    # torch calls the methods of a Python store by name.
    store = type("LonelyStore", (LonelyStore, distributed.Store), {})(ranks)

    def meet(*_: Any, **__: Any) -> Iterator[tuple[Any, int, int]]:
        # Process groups keep only the C++ half of the store alive; this closure keeps the Python half.
        yield store, int(os.environ["RANK"]), ranks

    # The package has a function of the same name.
    handlers: dict[str, Any] = import_module("torch.distributed.rendezvous")._rendezvous_handlers
    handlers.update(dict.fromkeys(("env", "tcp", "file"), meet))
    _replace_gloo()
    _never_split(distributed)
    _tell_of_absent_objects()


def _replace_gloo() -> None:
    """Give groups that ask for gloo torch's `fake` backend, since gloo would connect to all other ranks."""
    import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend
    config: Any = import_module("torch.distributed.distributed_c10d").BackendConfig
    plain = config.get_device_backend_map

    def without_gloo(self: Any) -> dict[str, str]:
        backends: dict[str, str] = plain(self)
        return {device: "fake" if backend == "gloo" else backend for device, backend in backends.items()}

    config.get_device_backend_map = without_gloo


def exchange_objects() -> None:
    """Let processes that are separate ranks exchange objects over gloo: messages over NCCL do not arrive."""
    distributed: Any = import_module("torch.distributed")
    if not distributed.is_available():
        return
    module: Any = import_module("torch.distributed.distributed_c10d")
    plain = module.BackendConfig.get_device_backend_map
    # torch takes the CPU for objects and barriers where a group has a backend for it.
    module.BackendConfig.get_device_backend_map = lambda config: {"cpu": "gloo", **plain(config)}
    for name in ("broadcast_object_list", "send_object_list", "recv_object_list"):
        replacement = _on_cpu(getattr(module, name))
        setattr(module, name, replacement)
        setattr(distributed, name, replacement)


def _on_cpu(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of objects that takes no other device, whichever the script names."""
    device, place = import_module("torch").device("cpu"), list(signature(plain).parameters).index("device")

    @functools.wraps(plain)
    def exchange(*args: Any, **kwargs: Any) -> Any:
        if len(args) > place:
            return plain(*args[:place], device, *args[place + 1 :], **kwargs)
        return plain(*args, **{**kwargs, "device": device})

    return exchange


def _never_split(distributed: Any) -> None:
    """Create every group of ranks from scratch: one that is split from all ranks would not know its size."""
    module: Any = import_module("torch.distributed.distributed_c10d")
    plain = module.init_process_group

    @functools.wraps(plain)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        distributed.group.WORLD.bound_device_id = None  # torch splits groups of a bound device alone

    module.init_process_group = distributed.init_process_group = init_process_group


def _tell_of_absent_objects() -> None:
    """Say what is wrong where a script waits for an object, whose bytes no other rank has sent."""
    module: Any = import_module("torch.distributed.distributed_c10d")
    plain = module._tensor_to_object

    def to_object(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        except Exception as error:
            raise RuntimeError(
                "the script waits for an object of another rank, as stages of a pipeline and sharded saves do, and on "
                "the emulated GPU no other rank runs"
            ) from error

    module._tensor_to_object = to_object


def agree_with_the_first(module: Any) -> None:
    """Let DeepSpeed's stage 3 compare no lists with those of the first rank, which has not sent them."""
    module.assert_ints_same_as_other_ranks = module.assert_lst_len_same_as_other_ranks = lambda _: None


class LonelyStore:
    """A store in which all ranks have counted, and other ranks' values are this rank's."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._ranks = ranks
        self._values: dict[str, bytes] = {}
        self._alike: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Set a value, also for keys of other ranks."""
        self._values[key] = self._alike[_RANK.sub("#", key)] = _bytes(value)

    def get(self, key: str) -> bytes:
        """Return a value, if necessary this rank's in place of another's."""
        return self._values.get(key, self._alike.get(_RANK.sub("#", key), _NCCL_ID))

    def add(self, key: str, amount: int) -> int:
        """Count for all ranks at once."""
        total = int(self._values.get(key, b"0")) + amount * self._ranks
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Return the winner's value, which is always this rank's."""
        return self._values.setdefault(key, _bytes(desired))

    def append(self, key: str, value: Any) -> None:
        """Append to a value."""
        self.set(key, self.get(key) + _bytes(value))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether this rank has set the keys."""
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:
        """Return at once: all keys count as set."""

    def delete_key(self, key: str) -> bool:
        """Delete a key and return whether it existed."""
        return self._values.pop(key, None) is not None

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Set several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Whether `append`, `multi_get` and `multi_set` exist."""
        return True

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self._values)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
