"""What touches CUDA in a test of its own process: a context stays as long as its process, and takes half a gibibyte.

The driver tells only what all processes use together, so that it would count as memory of every run that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")


def apart(function: Callable[_Arguments, _Found], *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Found:
    """What a function of a module gives, called in a process of its own, which has ended by then."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()
