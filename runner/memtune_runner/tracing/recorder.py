"""Writes down what a micro-batch allocates, frees and saves, on tensors that have no memory behind them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_iter

from memtune import trace as events
from memtune_runner.selective import ATTENTION, PRODUCTS
from memtune_runner.tracing import kernels

_UNCOUNTED = -1  # a weight, a buffer, or what stands for a save in the backward pass
_OUTSIDE = "the code around the model"
# What fake tensors are asked all the time: it makes nothing.
_QUESTIONS = frozenset({torch.ops.prim.device.default, torch.ops.aten.detach.default})


class Recording(NamedTuple):
    """The events of one micro-batch, and the bytes of its tensors."""

    codes: str
    numbers: list[int]
    sizes: list[int]
    made_by: str
    inputs: list[list[int]]
    gradients: list[int]


class _Saved:
    """What autograd holds in place of a tensor: its shape. When autograd lets go of this, the save is released."""

    __slots__ = ("dtype", "module", "number", "recorder", "shape", "strides")

    def __init__(self, recorder: Recorder, number: int, tensor: torch.Tensor) -> None:
        self.recorder, self.number, self.module = recorder, number, recorder.module
        self.shape, self.strides, self.dtype = tensor.shape, tensor.stride(), tensor.dtype

    def __del__(self) -> None:
        self.recorder.note(events.RELEASE, self.number)


class Recorder(TorchDispatchMode):
    """Counts the storages that operators make. Use it, ``watching`` a model, around one micro-batch.

    Autograd's saves go through hooks that keep no tensor alive, so that a tensor's death says when Python alone would
    have let it go; the saves are events of their own.
    """

    def __init__(self, as_gpu: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves the base class untyped
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
        self._is_silent = False
        self._is_attending = False
        self.module = 0
        self.modules = [_OUTSIDE]
        self.operator: object = ""  # the last

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and keeping the compiler out would cost a third of the time

    def note(self, code: str, number: int) -> None:
        """One event."""
        self._codes.append(code)
        self._numbers.append(number)

    def begin_backward(self) -> None:
        """The backward pass begins."""
        self._in_backward = True
        self.note(events.BACKWARD, 0)

    @property
    def module_name(self) -> str:
        """Where the operator ran that came last."""
        return self.modules[self.module]

    def recording(self) -> Recording:
        """Everything up to here."""
        codes, numbers, sizes, made_by, inputs = _merged(
            self._codes, self._numbers, self._sizes, self._made_by, self._inputs, self._sums if self._as_gpu else []
        )
        return Recording("".join(codes), numbers, sizes, "".join(made_by), inputs, self._gradients)

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(is_traceable_wrapper_subclass_type(each) for each in types):
            return NotImplemented  # its plain tensors come here afterwards
        self.operator = func
        result = func(*args, **(kwargs or {}))
        if self._is_silent or func in _QUESTIONS:
            return result
        maker = _maker(func, self._is_attending)
        for each in tree_iter(result):
            if isinstance(each, torch.Tensor):
                self._see(each, maker)
        if self._as_gpu:
            for size in kernels.temporary_bytes(func, args):
                self.note(events.DROP, self._make(size, events.OTHER))
        if self._in_backward and func is torch.ops.aten.add.Tensor:
            # The engine adds up gradients. On a GPU it does so in place where nobody else holds one of them; under a
            # dispatch mode never.
            operands = (self._number(each) for each in args if isinstance(each, torch.Tensor))
            self._sums.append((self._number(result), tuple(each for each in operands if each != _UNCOUNTED)))
        return result

    @contextmanager
    def attending(self) -> Iterator[None]:
        """What is made now is the result of an attention kernel."""
        self._is_attending = True
        yield
        self._is_attending = False

    @contextmanager
    def watching(self, model: nn.Module, rows: Iterable[Iterable[nn.Module]]) -> Iterator[None]:
        """Follow the modules of a model, its rows of blocks, its saves and its gradients."""
        handles: list[Any] = []
        blocks = {block: number for number, block in enumerate(block for row in rows for block in row)}
        for tensor in (*model.parameters(), *model.buffers()):
            self._count(tensor.untyped_storage(), _UNCOUNTED)
        for name, module in model.named_modules():
            self.modules.append(name or type(model).__name__)
            handles += self._follow(module, len(self.modules) - 1, blocks.get(module))
        for number, weight in enumerate(model.parameters()):
            if weight.requires_grad:
                handles.append(weight.register_post_accumulate_grad_hook(_GradientHook(self, number)))
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _follow(self, module: nn.Module, number: int, block: int | None) -> list[Any]:
        before: list[int] = []

        def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
            before.append(self.module)
            self.module = number
            if block is not None:
                going_in = {self._number(each) for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)}
                self._inputs.append(sorted(going_in - {_UNCOUNTED}))
                self.note(events.ENTER, block)

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            if block is not None:
                self.note(events.LEAVE, block)
            self.module = before.pop()

        return [
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(leave),
        ]

    def saw_gradient(self, number: int, weight: torch.Tensor) -> None:
        """A weight has its gradient."""
        assert weight.grad is not None
        self._gradients.append(number)
        tensor = self._number(weight.grad)
        # A gradient that is an alias of something else is a copy on every GPU.
        self.note(events.GRADIENT, self._make(weight.grad.nbytes, events.OTHER) if tensor == _UNCOUNTED else tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Saved:
        if tensor.layout is not torch.strided or self._number(tensor) == _UNCOUNTED:
            return tensor
        self._saves += 1
        self.note(events.SAVE, self._number(tensor))
        return _Saved(self, self._saves - 1, tensor)

    def _unpack(self, saved: torch.Tensor | _Saved) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        self.module = saved.module
        self.note(events.UNPACK, saved.number)
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
        """The number of the tensor's memory; what is met for the first time gets one."""
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


class _GradientHook:
    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder, self._number = recorder, number

    def __call__(self, weight: torch.Tensor) -> None:
        self._recorder.saw_gradient(self._number, weight)


def _merged(
    codes: list[str],
    numbers: list[int],
    sizes: list[int],
    made_by: list[str],
    inputs: list[list[int]],
    sums: list[tuple[int, tuple[int, ...]]],
) -> tuple[list[str], list[int], list[int], list[str], list[list[int]]]:
    """The events with sums of gradients made in place of an operand that ended there."""
    operands = dict(sums)
    same: dict[int, int] = {}  # a sum, and the tensor that it takes the place of
    dropped: set[int] = set()  # positions
    tensor = -1
    candidate = -1
    for position, (code, number) in enumerate(zip(codes, numbers, strict=True)):
        if code == events.ALLOC:
            tensor += 1
            candidate = tensor if tensor in operands else -1
        elif code == events.DROP and candidate >= 0 and number in operands[candidate]:
            if sizes[number] == sizes[candidate]:
                same[candidate] = same.get(number, number)
                dropped.add(position)
            candidate = -1
    names: dict[int, int] = {}
    kept = [number for number in range(len(sizes)) if number not in same]
    names.update({number: place for place, number in enumerate(kept)})
    names.update({number: names[first] for number, first in same.items()})
    out_codes, out_numbers = [], []
    tensor = -1
    for position, (code, number) in enumerate(zip(codes, numbers, strict=True)):
        if code == events.ALLOC:
            tensor += 1
            if tensor in same:
                continue
        if position in dropped:
            continue
        out_codes.append(code)
        out_numbers.append(names[number] if code in (events.DROP, events.SAVE, events.GRADIENT) else number)
    renamed = [sorted({names[each] for each in group}) for group in inputs]
    return out_codes, out_numbers, [sizes[n] for n in kept], [made_by[n] for n in kept], renamed
