"""What ``accelerate launch`` would have told the script through the environment, where MemTune takes its place."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from memtune import environment


def variables(current: Mapping[str, str]) -> dict[str, str]:
    """The variables that accelerate makes of its own options; none where the script is not started by it.

    Mixed precision, plugins and configuration files are accelerate's to read, so its own code reads them. Where the
    installed version has no such functions, the script goes on without the options, and is told so.
    """
    written = current.get(environment.ACCELERATE_OPTIONS)
    if not written:
        return {}
    try:
        return _asked_of_accelerate(json.loads(written))
    except Exception as error:  # a library's inner functions, of any version, may fail in any way
        print(f"memtune: the options of accelerate launch were not read: {error}", file=sys.stderr, flush=True)
        return {}


def _asked_of_accelerate(options: list[str]) -> dict[str, str]:
    launch: Any = import_module("accelerate.commands.launch")  # it has no types
    utilities: Any = import_module("accelerate.utils.launch")

    # The name of the script does not matter here.
    args = launch.launch_command_parser().parse_args([*options, "script.py"])
    # Where the ranks are is decided; any port will do, since none is used.
    args.num_machines, args.machine_rank, args.num_processes = 1, 0, 1
    args.multi_gpu, args.gpu_ids, args.main_process_port = False, "all", 0
    args, _, _ = launch._validate_launch_command(args)
    if args.use_deepspeed:
        found = utilities.prepare_deepspeed_cmd_env(args)[1]
    else:
        found = utilities.prepare_multi_gpu_env(args)
    return {name: value for name, value in found.items() if os.environ.get(name) != value}
