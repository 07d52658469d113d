"""Runs a script, a module or a code string in this process, exactly as Python would."""

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

# Frames of these files lie between Python and the user's script, and are hidden in tracebacks.
_BETWEEN = {__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap_external>"}
# Python itself calls this for -m, directories and archives. The public functions restore another __main__ at the end.
_run_as_main: Callable[..., object] = runpy._run_module_as_main  # type: ignore[attr-defined]


def run(kind: Kind, target: str, arguments: Sequence[str]) -> None:
    """Run the target as ``python``, ``python -m`` or ``python -c`` would.

    Its module stays ``__main__``: threads and exit handlers that outlive the script pickle its classes.
    """
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind is Kind.SCRIPT:
        sys.argv[:] = [target, *arguments]
        _run_file(str(Path(target).absolute()), main)  # the script may change directory
    elif kind is Kind.MODULE:
        sys.argv[:] = [target, *arguments]
        put_first(str(Path.cwd()))
        _run_as_main(target)
    else:
        sys.argv[:] = ["-c", *arguments]
        put_first("")
        exec(compile(target, "<string>", "exec", dont_inherit=True), main.__dict__)


def _run_file(path: str, main: types.ModuleType) -> None:
    """Run a script, compiled or not, or the ``__main__`` of a directory or archive."""
    if pkgutil.get_importer(path) is not None:
        sys.path.insert(0, path)
        _run_as_main("__main__", alter_argv=False)
        return
    put_first(str(Path(path).resolve().parent))
    loader: SourceFileLoader | SourcelessFileLoader = SourceFileLoader("__main__", path)
    if path.endswith(".pyc"):
        loader = SourcelessFileLoader("__main__", path)
        code: Any = loader.get_code("__main__")  # or an ImportError
    else:
        code = loader.source_to_code(loader.get_data(path), path)
    vars(main).update(__file__=path, __loader__=loader, __cached__=None)
    exec(code, main.__dict__)


def put_first(directory: str) -> None:
    """Put the script's directory first on sys.path, unless Python was started with safe_path."""
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11 and later
        sys.path.insert(0, directory)


def exit_code(error: SystemExit) -> int:
    """Return the exit code as Python would: None is 0; a message is printed and is 1."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def show_error(error: BaseException, caller: str) -> None:
    """Print the traceback as Python would, starting at the script. ``caller`` is the file that ran it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in {*_BETWEEN, caller}:
        trace = trace.tb_next
    error.__traceback__ = trace or error.__traceback__
    sys.excepthook(type(error), error, error.__traceback__)
