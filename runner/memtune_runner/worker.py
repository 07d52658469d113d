"""One rank's process: runs the user's script as Python itself would, with the hooks around it."""

from __future__ import annotations

import os
import pkgutil
import runpy
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from typing import Any

from memtune import environment
from memtune.report import EXIT_CODES, Ending, Report
from memtune_runner import accelerate_options, allocator_settings, failures, ranks, stacks
from memtune_runner.bad_input import BadInputError
from memtune_runner.command import Kind
from memtune_runner.preflight import check_worker
from memtune_runner.ranks import Rank
from memtune_runner.settings import SettingsError, read_settings
from memtune_runner.watch import watching

# Whatever is run from these files stands between Python and the user's script, and explains none of its errors.
_OURS = {__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap_external>"}
# What Python itself calls for -m, directories and archives. Its public likes put another __main__ back at the end.
_run_as_main: Callable[..., object] = runpy._run_module_as_main  # type: ignore[attr-defined]


def main(words: Sequence[str]) -> int:
    """Run ``KIND TARGET ARGUMENTS...`` as this rank and return the exit code."""
    rank = Rank.read(os.environ)
    # Of the processes below a program, only one may train; a worker that does not is a mistake.
    must_train = environment.HOOKED not in os.environ
    # Whatever this process starts (loaders, compilers, version probes) belongs to it and is no rank of its own.
    os.environ[environment.HOOKED] = "1"
    try:
        settings = read_settings(os.environ)
        check_worker(settings, rank)
        accelerate_options.check_variables(os.environ)
    except (SettingsError, BadInputError) as error:
        return _refused(rank, str(error))
    ranks.hide_launcher(settings, os.environ)
    stacks.show_when_asked()
    # Before torch is imported.
    os.environ.update(allocator_settings.variables(settings.plan, os.environ))
    try:
        with _ending_on_sigterm(), watching(settings, rank, must_train):
            for name, value in accelerate_options.variables(os.environ).items():
                os.environ.setdefault(name, value)
            _run(Kind(words[0]), words[1], list(words[2:]))
    except SystemExit:
        raise  # its code, or its message, is Python's to deal with
    except BadInputError as error:
        return _told(error)
    except BaseException as error:
        exit_code = failures.of_exception(error).exit_code
        _show(error)
        return exit_code
    return 0


def _refused(rank: Rank, message: str) -> int:
    code = _told(message)
    directory = ranks.own_directory(os.environ)
    if directory is not None:
        ranks.write_rank_report(directory, rank, Report(Ending.BAD_INPUT, code, message=message, rank=rank.rank))
    return code


def _told(message: object) -> int:
    print(f"memtune: {message}", file=sys.stderr, flush=True)
    return EXIT_CODES[Ending.BAD_INPUT]


def _run(kind: Kind, target: str, arguments: list[str]) -> None:
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


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Make SIGTERM unwind the script, so that its report is written. A handler of the script's own takes over."""
    owner = os.getpid()

    def end(number: int, _frame: object) -> None:
        if os.getpid() == owner:
            raise SystemExit(128 + number)
        # A child of the script, forked with this handler, is to die as any other process does.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    yield


def _show(error: BaseException) -> None:
    """Print the traceback as Python would, from the script's first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    error.__traceback__ = trace or error.__traceback__
    sys.excepthook(type(error), error, error.__traceback__)
