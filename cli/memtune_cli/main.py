"""The `memtune` command: exit codes, and errors in one line instead of a traceback."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from memtune_cli.arguments import build_parser
from memtune_cli.errors import INTERRUPTED, InputError, installing

# What installs a package that is missing; what is not named here comes with the command's own extra.
_EXTRAS = {"optuna": "cli,operator"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and give its exit code."""
    arguments = build_parser().parse_args(argv)
    if sys.stdout is None:
        # Closed by whoever started the command: what it prints goes nowhere, its exit code still counts.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except InputError as error:
        print("\n".join(f"memtune: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has enough. Python would complain once more when it flushes at its end, so give it nowhere to go.
        _forget_output()
        return 0
    except OSError as error:
        _forget_output()
        print(f"memtune: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return 2


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: argparse.Namespace) -> int:
    # Looking for plugins of pydantic among all installed packages costs a good part of its import.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # What is imported stays; searching it for garbage every 700 objects is a tenth of the time until a page is there.
    gc.set_threshold(100_000)
    # Imported only when it is called: matplotlib, pydantic and yaml cost more than the whole prediction.
    try:
        run: Callable[[argparse.Namespace], int] = import_module(f"memtune_cli.commands.{arguments.command}").run
        return run(arguments)
    except ModuleNotFoundError as error:
        package = str(error.name).split(".")[0]
        if package.startswith("memtune"):
            raise
        raise InputError(
            f"memtune {arguments.command} needs {package}, which is not installed; "
            f"{installing(_EXTRAS.get(package, 'cli'))}"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
