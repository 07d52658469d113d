"""Runs a function that uses CUDA in a subprocess: a context lasts as long as its process and takes 0.5 GiB.

The driver reports only the memory of all processes together, so the context would count in every later run.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")


def apart(function: Callable[_Arguments, _Found], *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Found:
    """Call a function of a module in a subprocess and return its result after the subprocess has ended."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()
