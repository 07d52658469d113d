"""Marks the outputs of Triton kernels as written: no operator does, and the old values would stay."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from memtune_runner.emulated.dispatch_mode import ValueMode
from memtune_runner.rank.imports import ImportWatch

# Inductor's names for the output arguments of its kernels.
_WRITTEN = ("out_ptr", "in_out_ptr")


def follow_kernels(mode: ValueMode) -> ImportWatch:
    """Report kernels to the mode; the watch waits for Triton, which takes a second to import."""
    watch = ImportWatch()
    watch.when_imported("torch._inductor.runtime.triton_heuristics", lambda module: _follow_inductor(module, mode))
    watch.when_imported("triton.runtime.jit", lambda module: _follow_triton(module, mode))
    watch.install()
    return watch


def _follow_inductor(module: ModuleType, mode: ValueMode) -> None:
    """Lose the values of what a kernel of a compiled function writes."""

    def launched(kernel: Any, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        named = zip(kernel.fn.arg_names, args, strict=False)
        mode.lose(_tensors(value for name, value in named if _is_written(kernel, name)))

    _before_run(module.CachingAutotuner, launched)


def _is_written(kernel: Any, name: str) -> bool:
    return name.startswith(_WRITTEN) or name in kernel.mutated_arg_names


def _follow_triton(module: ModuleType, mode: ValueMode) -> None:
    """Trust no argument of a kernel of the script's own, which does not say what it writes.

    Floating point numbers are lost. Indices stay, although not true: most kernels only read them.
    """

    def launched(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = _tensors((*args, *kwargs.values()))
        mode.lose([each for each in given if each.is_floating_point()])
        mode.doubt([each for each in given if not each.is_floating_point()])

    _before_run(module.JITFunction, launched)


def _before_run(kernels: Any, launched: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]) -> None:
    plain = kernels.run

    @functools.wraps(plain)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launched(self, args, kwargs)
        return plain(self, *args, **kwargs)

    kernels.run = run


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in values if isinstance(each, torch.Tensor) and each.is_cuda]
