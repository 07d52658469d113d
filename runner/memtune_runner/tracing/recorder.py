"""Records what a micro-batch allocates, frees and saves, on tensors without memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_iter

from memtune.wire import trace as events
from memtune_runner.engine.selective_checkpointing import ATTENTION, PRODUCTS
from memtune_runner.tracing import kernels
from memtune_runner.tracing.model_hooks import Numbers, followed, tensors_of
from memtune_runner.tracing.recording import Recording, merged
from memtune_runner.tracing.shared_status import ignore_place
from memtune_runner.tracing.trace_errors import sparse_gradient

_UNCOUNTED = -1  # a weight, a buffer, or a stand-in for a save in the backward pass


class _Saved:
    """The object that autograd holds in place of a tensor: its shape. When autograd frees it, the save is released."""

    __slots__ = ("dtype", "module", "number", "recorder", "shape", "strides")

    def __init__(self, recorder: Recorder, number: int, tensor: torch.Tensor) -> None:
        self.recorder, self.number, self.module = recorder, number, recorder.module
        self.shape, self.strides, self.dtype = tensor.shape, tensor.stride(), tensor.dtype

    def __del__(self) -> None:
        self.recorder.note(events.RELEASE, self.number)


class Recorder(TorchDispatchMode):
    """Counts the storages that operators create. Use it around one micro-batch, with ``watching`` the model.

    Autograd's saves go through hooks that keep no tensor alive, so a tensor dies when Python alone would have freed it;
    saves are events of their own.
    """

    def __init__(self, numbers: Numbers, as_gpu: bool, set_place: Callable[[str], None] = ignore_place) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves the base class untyped
        self._names = numbers
        self._as_gpu = as_gpu
        self._codes: list[str] = []
        self._numbers: list[int] = []
        self._sizes: list[int] = []
        self._made_by: list[str] = []
        self._inputs: list[list[int]] = []
        self._gradients: list[int] = []
        self._saves = 0
        self._sums: list[tuple[int, tuple[int, ...]]] = []
        self._counted: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._in_backward = False
        self._is_silent = self._is_attending = False
        self._stand_at = set_place
        self.module = 0
        self.operator: object = ""  # the last one

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and keeping the compiler out would take a third of the time

    def note(self, code: str, number: int) -> None:
        """Record an event."""
        self._codes.append(code)
        self._numbers.append(number)

    def begin_backward(self) -> None:
        """Record the start of the backward pass."""
        self._in_backward = True
        self.note(events.BACKWARD, 0)

    @property
    def module(self) -> int:
        """The number of the running module."""
        return self._module

    @module.setter
    def module(self, number: int) -> None:
        self._module = number
        self._stand_at(f"while the model was run, in {self.module_name}")

    @property
    def module_name(self) -> str:
        """The name of the module in which the last operator ran."""
        return self._names.names[self.module]

    def recording(self) -> Recording:
        """Return everything recorded so far."""
        sums = self._sums if self._as_gpu else []
        return merged(
            self._codes, self._numbers, self._sizes, self._made_by, self._inputs, self._gradients, dict(sums)
        )  # fmt: skip

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(is_traceable_wrapper_subclass_type(each) for each in types):
            return NotImplemented  # its plain tensors arrive here later
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # called all the time
        self.operator = func
        result = func(*args, **(kwargs or {}))
        if self._is_silent or func is torch.ops.aten.detach.default:
            return result
        maker = _maker(func, self._is_attending)
        for each in tree_iter(result):
            if isinstance(each, torch.Tensor):
                self._see(each, maker)
        if self._as_gpu:
            for size in kernels.temporary_bytes(func, args):
                self.note(events.DROP, self._make(size, events.OTHER))
        if self._in_backward and func is torch.ops.aten.add.Tensor:
            # The autograd engine sums gradients. On a GPU it does so in place if it holds the only reference; under a
            # dispatch mode it never does.
            operands = (self._number(each) for each in args if isinstance(each, torch.Tensor))
            self._sums.append((self._number(result), tuple(each for each in operands if each != _UNCOUNTED)))
        return result

    @contextmanager
    def attending(self) -> Iterator[None]:
        """Mark everything allocated as the result of an attention kernel."""
        self._is_attending = True
        yield
        self._is_attending = False

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Follow a model's modules, blocks, saves and gradients."""
        whole = [*model.parameters(), *model.buffers()]
        # A deep copy of a fake tensor has another storage than its views, which must live as long.
        views = [tensor.detach() for tensor in whole]
        for tensor in (*whole, *views):
            self._count(tensor.untyped_storage(), _UNCOUNTED)
        with followed(model, self._names, self), saved_tensors_hooks(self._pack, self._unpack):
            yield

    def enter(self, block: int, given: Any) -> None:
        """Record the call of a block with its inputs."""
        going_in = {self._number(each) for each in tree_iter(given) if isinstance(each, torch.Tensor)}
        self._inputs.append(sorted(going_in - {_UNCOUNTED}))
        self.note(events.ENTER, block)
        learns = any(each.requires_grad for each in tensors_of(given))
        if torch.is_grad_enabled() and not (learns or self._in_backward):
            self.note(events.FIRST, block)

    def keep(self, tensor: torch.Tensor) -> _Saved | None:
        """Record a save that a library would make besides autograd's; None for weights and buffers."""
        if self._number(tensor) == _UNCOUNTED:
            return None
        return self._save(events.KEEP, tensor)

    def ask_for(self, saved: _Saved) -> None:
        """Record that the backward pass uses a save."""
        self.module = saved.module
        self.note(events.UNPACK, saved.number)

    def record_gradient(self, number: int, weight: torch.Tensor) -> None:
        """Record a weight's gradient; without one, an autograd function left the weight unused."""
        if weight.grad is None:
            return
        if weight.grad.layout is not torch.strided:
            raise sparse_gradient(self.module_name, self._names.weight_names[number])
        self._gradients.append(number)
        tensor = self._number(weight.grad)
        # A gradient that aliases something else is copied on every GPU.
        self.note(events.GRADIENT, self._make(weight.grad.nbytes, events.OTHER) if tensor == _UNCOUNTED else tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Saved:
        if tensor.layout is not torch.strided or self._number(tensor) == _UNCOUNTED:
            return tensor
        return self._save(events.SAVE, tensor)

    def _save(self, code: str, tensor: torch.Tensor) -> _Saved:
        self._saves += 1
        self.note(code, self._number(tensor))
        return _Saved(self, self._saves - 1, tensor)

    def _unpack(self, saved: torch.Tensor | _Saved) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        self.ask_for(saved)
        self._is_silent = True
        try:
            tensor = torch.empty_strided(saved.shape, saved.strides, dtype=saved.dtype)
        finally:
            self._is_silent = False
        self._count(tensor.untyped_storage(), _UNCOUNTED)
        return tensor

    def _see(self, tensor: torch.Tensor, maker: str) -> None:
        if tensor.layout is torch.strided and tensor.untyped_storage()._cdata not in self._counted:
            storage = tensor.untyped_storage()
            self._count(storage, self._make(storage.nbytes(), maker))

    def _make(self, size_bytes: int, maker: str) -> int:
        self.note(events.ALLOC, self.module)
        self._sizes.append(size_bytes)
        self._made_by.append(maker)
        return len(self._sizes) - 1

    def _number(self, tensor: torch.Tensor) -> int:
        """Return the number of the tensor's storage, assigned when it is first seen."""
        self._see(tensor, events.OTHER)
        found = self._counted.get(tensor.untyped_storage()._cdata)
        return _UNCOUNTED if found is None else found[1]

    def _count(self, storage: torch.UntypedStorage, number: int) -> None:
        key = storage._cdata

        def gone(_: Any) -> None:
            del self._counted[key]
            if number != _UNCOUNTED:
                self.note(events.DROP, number)

        self._counted[key] = weakref.ref(storage, gone), number


def _maker(func: Any, is_attending: bool) -> str:
    if func in PRODUCTS:
        return events.PRODUCT
    return events.ATTENTION if is_attending or func in ATTENTION else events.OTHER
