"""Suspends the mode that follows values where it would change memory, and enters it where torch drops it."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import _tensor_str
from torch.nn.modules import _functions
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils import _python_dispatch, checkpoint

from memtune_runner.emulated.dispatch_mode import ValueMode
from memtune_runner.emulated.value_reads import ValueReads
from memtune_runner.rank.imports import ImportWatch

# torch leaves these untyped.
_modes: Callable[[], list[Any]] = _python_dispatch._get_current_dispatch_mode_stack
_text: Any = _tensor_str
_checkpoint: Any = checkpoint
# Ways to read a tensor's value, which count as reads wherever they are in a backward pass.
_READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__")
# Moves a tensor or changes its type; what it moves to the host is read.
_MOVES = ("to",)
_REGISTERS = ("register_hook", "register_post_accumulate_grad_hook")


def _entered(mode: Any) -> AbstractContextManager[Any]:
    return mode  # type: ignore[no-any-return]  # torch leaves the base class untyped


@contextmanager
def suspended_in_backward(mode: ValueMode) -> Iterator[None]:
    """Suspend the mode during backward passes, but for reads, and for what checkpointing recomputes in them."""
    variable: Any = torch.autograd.Variable
    engine, text = variable._execution_engine, _text._str
    reentrant, generator = _checkpoint.CheckpointFunction, _checkpoint._checkpoint_without_reentrant_generator

    def shown(tensor: Any, *args: Any, **kwargs: Any) -> str:
        is_followed = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_cuda
        return mode.show(tensor, text) if is_followed else text(tensor, *args, **kwargs)

    class Followed:
        """The reentrant checkpoint function."""

        @staticmethod
        def apply(function: Callable[..., Any], *args: Any) -> Any:
            return reentrant.apply(_followed(mode, function), *args)

    # The engine reads the generator's signature, which differs between releases of torch.
    @functools.wraps(generator)
    def begun(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return generator(_followed(mode, function), *args, **kwargs)

    # Below `checkpoint` itself, which torch's compiler knows by identity.
    _checkpoint.CheckpointFunction, _checkpoint._checkpoint_without_reentrant_generator = Followed, begun
    _text._str = shown
    variable._execution_engine = _Engine(engine, mode)
    try:
        yield
    finally:
        variable._execution_engine, _text._str = engine, text
        _checkpoint.CheckpointFunction, _checkpoint._checkpoint_without_reentrant_generator = reentrant, generator


def _followed_to_host(mode: ValueMode, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what moves a tensor, for which the mode is entered if it moves it to the host."""
    followed = _followed(mode, plain)

    @functools.wraps(plain)
    def moved(*args: Any, **kwargs: Any) -> Any:
        return (followed if any(map(_is_host, (*args[1:], *kwargs.values()))) else plain)(*args, **kwargs)

    return moved


def _is_host(given: Any) -> bool:
    """Whether a device is named, or given by a tensor, that is the CPU."""
    device = given.device if isinstance(given, torch.Tensor) else given
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "cpu"


def _followed(mode: ValueMode, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, for which the mode is entered in the middle of a backward pass."""

    @functools.wraps(function)
    def entered(*args: Any, **kwargs: Any) -> Any:
        if _modes():
            return function(*args, **kwargs)
        with _entered(mode):
            return function(*args, **kwargs)

    return entered


@contextmanager
def followed_in_hooks(mode: ValueMode) -> Iterator[None]:
    """Enter the mode in hooks of tensors, as DeepSpeed's, which ask whether a gradient is a number."""

    def registering(register: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(register)
        def registered(tensor: Any, hook: Callable[..., Any]) -> Any:
            return register(tensor, _followed(mode, hook))

        return registered

    with _replaced(torch.Tensor, _REGISTERS, registering):
        yield


@contextmanager
def followed_in_replicas(mode: ValueMode) -> Iterator[None]:
    """Enter the mode in the threads of DataParallel, of which each runs the model on another GPU."""

    def applying(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def applied(modules: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            return plain([_followed(mode, each) for each in modules], *args, **kwargs)

        return applied

    # The package has a function of the module's name.
    with _replaced(sys.modules["torch.nn.parallel.data_parallel"], ("parallel_apply",), applying):
        yield


@contextmanager
def followed_masks(mode: ValueMode) -> Iterator[None]:
    """Find the places of a mask by its values also where the backward pass of indexing looks for them.

    So are the places of a sparse tensor, where an operator sums up what has the same.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each operator that is replaced
        library.impl("nonzero", mode.places, "CUDA")
        library.impl("_coalesce", mode.coalesced, "SparseCUDA")
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def trusted_counts(reads: ValueReads) -> Iterator[None]:
    """Record no read where a synchronized batch norm leaves out ranks without a sample: none has fewer than this."""

    def normalizing(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def normalized(*args: Any, **kwargs: Any) -> Any:
            with reads.paused():
                return plain(*args, **kwargs)

        return normalized

    with _replaced(_functions.SyncBatchNorm, ("forward",), normalizing):
        yield


@contextmanager
def counted_lengths() -> Iterator[None]:
    """Give CTC loss the lengths of the host as numbers, which torch itself does only where no mode is active."""

    def given(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def loss(scores: Any, targets: Any, *args: Any, **kwargs: Any) -> Any:
            return plain(scores, targets, *map(_counted, args), **{name: _counted(kwargs[name]) for name in kwargs})

        return loss

    with _replaced(torch, ("ctc_loss",), given):
        yield


def _counted(given: Any) -> Any:
    return given.tolist() if isinstance(given, torch.Tensor) and not given.is_cuda else given


def _by_own_name(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that shows a subclass which one was called: torch looks it up, and would find the replacement."""

    @functools.wraps(plain)
    def method(*args: Any, **kwargs: Any) -> Any:
        if has_torch_function(args[:1]):
            return handle_torch_function(plain, args[:1], *args, **kwargs)
        return plain(*args, **kwargs)

    return method


@contextmanager
def _replaced(owner: Any, names: tuple[str, ...], wrapped: Callable[..., Any]) -> Iterator[None]:
    plain = {name: getattr(owner, name) for name in names}
    for name, function in plain.items():
        setattr(owner, name, wrapped(_by_own_name(function) if owner is torch.Tensor else function))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(owner, name, function)


@contextmanager
def suspended_in_compiled(mode: ValueMode) -> Iterator[None]:
    """Suspend the mode in compiled functions: torch compiles none under it, and their kernels are not dispatched."""
    with ExitStack() as compiler:
        watch = ImportWatch()
        watch.when_imported(
            "torch._dynamo.eval_frame", lambda module: compiler.enter_context(_suspended_by(module, mode))
        )
        watch.install()
        compiler.callback(watch.remove)
        yield


@contextmanager
def _suspended_by(eval_frame: Any, mode: ValueMode) -> Iterator[None]:
    context = eval_frame.OptimizeContext
    plain = context.__call__

    def compiled(self: Any, function: Any) -> Any:
        optimized = plain(self, function)
        if not isinstance(optimized, FunctionType):
            return optimized  # a module, whose forward pass comes here by itself

        @functools.wraps(optimized)
        def unfollowed(*args: Any, **kwargs: Any) -> Any:
            with _suspended(mode):
                return optimized(*args, **kwargs)

        return unfollowed

    context.__call__ = compiled
    try:
        yield
    finally:
        context.__call__ = plain


@contextmanager
def _suspended(mode: Any) -> Iterator[None]:
    """Suspend the mode if it is the only one, and trust no value from then on."""
    # With a mode of the script's above it, torch adds gradients out of place anyway.
    if _modes() != [mode]:
        yield
        return
    mode.__exit__(None, None, None)
    try:
        yield
    finally:
        mode.__enter__()
        mode.doubt_numbers()


class _Engine:
    """The autograd engine, wrapped to suspend the mode."""

    def __init__(self, engine: Any, mode: ValueMode) -> None:
        self._engine: Any = engine
        self._mode: Any = mode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Run torch's backward pass without the mode."""
        with (
            _suspended(self._mode),
            _replaced(torch.Tensor, _READS, lambda plain: _followed(self._mode, plain)),
            _replaced(torch.Tensor, _MOVES, lambda plain: _followed_to_host(self._mode, plain)),
        ):
            return self._engine.run_backward(*args, **kwargs)
