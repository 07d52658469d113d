"""Entry point of the `memtune` command: runs a subcommand and turns errors into one line and an exit code."""

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

# The extra that installs a missing package; others belong to the `cli` extra.
_EXTRAS = {"optuna": "cli,operator"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    arguments = build_parser().parse_args(argv)
    if sys.stdout is None:
        # Stdout was closed by the parent process: discard output, keep the exit code.
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
        # The reader closed the pipe. Redirect stdout so that Python's final flush does not fail again.
        _forget_output()
        return 0
    except OSError as error:
        _forget_output()
        print(f"memtune: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return 2


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: argparse.Namespace) -> int:
    # Scanning installed packages for pydantic plugins takes a large part of its import time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Imported objects stay alive; garbage collection during imports costs a tenth of the start-up time.
    gc.set_threshold(100_000)
    # Imported lazily: matplotlib, pydantic and yaml take longer to import than the prediction takes.
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
