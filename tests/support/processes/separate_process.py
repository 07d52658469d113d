"""Runs CUDA code of a test in its own process, since a context stays for the process and takes half a gibibyte.

The driver only reports the memory of all processes together, so it would count towards every later run.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Found = TypeVar("_Found")


def run_in_separate_process(
    function: Callable[_Arguments, _Found], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Found:
    """The result of a module's function, called in its own process, which has ended by then."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()
