"""One rank's process: runs the user's script as Python itself would, with the hooks around it."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from memtune.wire import environment
from memtune.wire.report import EXIT_CODES, Ending, Report
from memtune_runner.command import accelerate_options, run_target
from memtune_runner.command.command import Kind
from memtune_runner.rank import allocator_settings, failures, ranks, stacks
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.preflight import check_worker
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import SettingsError, read_settings
from memtune_runner.watch import watching

# Whatever is run from these files stands between Python and the user's script, and explains none of its errors.
_OURS = {__file__, run_target.__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap_external>"}


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
            run_target.run(Kind(words[0]), words[1], words[2:])
    except SystemExit:
        raise  # its code, or its message, is Python's to deal with
    except BadInputError as error:
        return _told(error, error.ending)
    except BaseException as error:
        exit_code = failures.of_exception(error).exit_code
        show(error)
        return exit_code
    return 0


def _refused(rank: Rank, message: str) -> int:
    code = _told(message)
    directory = ranks.own_directory(os.environ)
    if directory is not None:
        ranks.write_rank_report(directory, rank, Report(Ending.BAD_INPUT, code, message=message, rank=rank.rank))
    return code


def _told(message: object, ending: Ending = Ending.BAD_INPUT) -> int:
    print(f"memtune: {message}", file=sys.stderr, flush=True)
    return EXIT_CODES[ending]


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


def show(error: BaseException) -> None:
    """Print the traceback as Python would, from the script's first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    error.__traceback__ = trace or error.__traceback__
    sys.excepthook(type(error), error, error.__traceback__)
