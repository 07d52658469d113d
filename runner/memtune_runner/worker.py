"""One rank's process: runs the user's script as Python would, with the hooks around it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event

from memtune.wire import environment
from memtune.wire.report import EXIT_CODES, Ending, Report
from memtune_runner.command import accelerate_options, run_target
from memtune_runner.command.command import Kind
from memtune_runner.rank import allocator_settings, failure_causes, ranks, stacks
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.preflight import check_worker
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import SettingsError, read_settings
from memtune_runner.watch import watching


def main(words: Sequence[str], ready: Callable[[], None] = lambda: None) -> int:
    """Run ``KIND TARGET ARGUMENTS...`` as this rank and return the exit code.

    ``ready`` is called once the environment is that of the script.
    """
    rank = Rank.read(os.environ)
    # Below a program, only one of several processes may train; a worker that does not train is a mistake.
    must_train = environment.HOOKED not in os.environ
    # Processes that this one starts (loaders, compilers, version probes) belong to it and are no ranks.
    os.environ[environment.HOOKED] = "1"
    try:
        settings = read_settings(os.environ)
        check_worker(settings, rank)
        accelerate_options.check_variables(os.environ)
    except (SettingsError, BadInputError) as error:
        return _refused(rank, str(error))
    ranks.hide_launcher(settings, os.environ)
    stacks.print_on_signal()
    # This must precede the import of torch.
    os.environ.update(allocator_settings.variables(settings.plan, os.environ))
    ready()
    directory = ranks.own_directory(os.environ)
    try:
        with (
            ranks.leaving_a_report(directory, rank),
            _ending_on_sigterm() as script_ended,
            watching(settings, rank, must_train),
        ):
            for name, value in accelerate_options.variables(os.environ).items():
                os.environ.setdefault(name, value)
            try:
                run_target.run(Kind(words[0]), words[1], words[2:])
            finally:
                script_ended.set()
    except SystemExit:
        raise  # Python handles its exit code or message
    except BadInputError as error:
        return _report_error(error, error.ending)
    except BaseException as error:
        exit_code = failure_causes.of_exception(error).exit_code
        run_target.show_error(error, __file__)
        return exit_code
    return 0


def _refused(rank: Rank, message: str) -> int:
    code = _report_error(message)
    directory = ranks.own_directory(os.environ)
    if directory is not None:
        ranks.write_rank_report(directory, rank, Report(Ending.BAD_INPUT, code, message=message, rank=rank.rank))
    return code


def _report_error(message: object, ending: Ending = Ending.BAD_INPUT) -> int:
    print(f"memtune: {message}", file=sys.stderr, flush=True)
    return EXIT_CODES[ending]


@contextmanager
def _ending_on_sigterm() -> Iterator[Event]:
    """Make SIGTERM unwind the script, so that its report is written. A handler that the script installs replaces it.

    Once the yielded event says that the script has ended, the signal does nothing: an exception would interrupt the
    report or the script's exit handlers, and its traceback would hide the script's own last lines. The launcher kills
    what lasts too long.
    """
    owner, script_ended = os.getpid(), Event()

    def end(number: int, _frame: object) -> None:
        if os.getpid() == owner:
            if script_ended.is_set():
                return
            raise SystemExit(128 + number)
        # A child that the script forked with this handler must die of the signal like any other process.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)
    try:
        yield script_ended
    finally:
        script_ended.set()  # also where no script began
