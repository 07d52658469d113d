"""Runs a script, a module or a piece of code in this process, as Python itself would."""

from __future__ import annotations

import pkgutil
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from typing import Any

from memtune_runner.command.command import Kind

# What Python itself calls for -m, directories and archives. Its public likes put another __main__ back at the end.
_run_as_main: Callable[..., object] = runpy._run_module_as_main  # type: ignore[attr-defined]


def run(kind: Kind, target: str, arguments: Sequence[str]) -> None:
    """Run the target as ``python``, ``python -m`` or ``python -c`` would.

    Its module stays ``__main__``: threads that outlive the script, and what runs at Python's end, pickle its classes.
    """
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind is Kind.SCRIPT:
        sys.argv[:] = [target, *arguments]
        _run_file(str(Path(target).absolute()), main)  # the script may go to another directory
    elif kind is Kind.MODULE:
        sys.argv[:] = [target, *arguments]
        _put_first(str(Path.cwd()))
        _run_as_main(target)
    else:
        sys.argv[:] = ["-c", *arguments]
        _put_first("")
        exec(compile(target, "<string>", "exec", dont_inherit=True), main.__dict__)


def _run_file(path: str, main: types.ModuleType) -> None:
    """Run a script, compiled or not, or the ``__main__`` in a directory or archive."""
    if pkgutil.get_importer(path) is not None:
        sys.path.insert(0, path)
        _run_as_main("__main__", alter_argv=False)
        return
    _put_first(str(Path(path).resolve().parent))
    loader: SourceFileLoader | SourcelessFileLoader = SourceFileLoader("__main__", path)
    if path.endswith(".pyc"):
        loader = SourcelessFileLoader("__main__", path)
        code: Any = loader.get_code("__main__")  # or an ImportError
    else:
        code = loader.source_to_code(loader.get_data(path), path)
    vars(main).update(__file__=path, __loader__=loader, __cached__=None)
    exec(code, main.__dict__)


def _put_first(directory: str) -> None:
    """Where Python looks first for the script's own modules, unless it was told not to."""
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11 and later
        sys.path.insert(0, directory)
