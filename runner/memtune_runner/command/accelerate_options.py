"""The environment that ``accelerate launch`` would set for the script, when MemTune launches instead."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from memtune.wire import environment
from memtune_runner.rank.bad_input import BadCommandError, BadInputError

_CONFIG_FILE = "--config_file"


def check(options: Sequence[str]) -> None:
    """Raise BadCommandError if the named configuration file is missing: accelerate would not start."""
    path = _config_file(options)
    if path is not None and not Path(path).is_file():
        where = "" if Path(path).is_absolute() else f" in {Path.cwd()}"
        raise BadCommandError(f"{_named(path)}: there is no such file{where}; correct the command, or add it")


def check_variables(current: Mapping[str, str]) -> None:
    """Make the same check in a worker that a program started, whose command line was not checked before."""
    check(json.loads(current.get(environment.ACCELERATE_OPTIONS) or "[]"))


def variables(current: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that accelerate derives from its options; none if accelerate is not the launcher.

    Accelerate's own code parses mixed precision, plugins and configuration files. If the installed version lacks these
    functions, the script runs without the options and a warning says so. A configuration file that accelerate cannot
    read is bad input: accelerate would not have started.
    """
    written = current.get(environment.ACCELERATE_OPTIONS)
    return _read(lambda: _parsed(json.loads(written))) if written else {}


def variables_of_call(args: Any) -> dict[str, str]:
    """Return the same variables for a launcher called as a function, from its parsed options."""
    return _read(lambda: args)


def _read(parse: Callable[[], Any]) -> dict[str, str]:
    try:
        return _asked_of_accelerate(parse())
    except BadInputError:
        raise
    except Exception as error:  # private functions of any version may fail in any way
        print(f"memtune: the options of accelerate launch were not read: {error}", file=sys.stderr, flush=True)
        return {}


def _parsed(options: list[str]) -> Any:
    launch: Any = import_module("accelerate.commands.launch")  # untyped
    # The script's name does not matter here.
    return launch.launch_command_parser().parse_args([*options, "script.py"])


def _asked_of_accelerate(args: Any) -> dict[str, str]:
    launch: Any = import_module("accelerate.commands.launch")
    utilities: Any = import_module("accelerate.utils.launch")

    if args.config_file is not None:
        _check_readable(args.config_file, launch.load_config_from_file)
    # MemTune places the ranks; the port is never used.
    args.num_machines, args.machine_rank, args.num_processes = 1, 0, 1
    args.multi_gpu, args.gpu_ids, args.main_process_port = False, "all", 0
    args, _, _ = launch._validate_launch_command(args)
    if args.use_deepspeed:
        found = utilities.prepare_deepspeed_cmd_env(args)[1]
    else:
        found = utilities.prepare_multi_gpu_env(args)
    return {name: value for name, value in found.items() if os.environ.get(name) != value}


def _check_readable(path: str, load: Callable[[str], object]) -> None:
    try:
        load(path)
    except Exception as error:  # YAML, JSON and accelerate raise errors of their own
        raise BadInputError(f"{_named(path)}: accelerate cannot read it: {' '.join(str(error).split())}") from None


def _config_file(options: Sequence[str]) -> str | None:
    """Return the last configuration file named, as accelerate does; it accepts no abbreviations."""
    found = None
    for word, following in zip(options, [*options, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name in (_CONFIG_FILE, "--config-file"):
            found = value if equals else following
    return found


def _named(path: str) -> str:
    return f"accelerate launch {_CONFIG_FILE} {path}"
