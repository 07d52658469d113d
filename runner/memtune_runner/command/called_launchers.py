"""Intercepts launchers that a program calls as a function: `trl sft` calls accelerate's, `tune run` torch's.

Workers started by them would escape MemTune. The calling process already is a rank, so it runs the script itself, or
its part of what ``torch.multiprocessing.spawn`` would start, and the launcher returns when that has ended.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtune.wire import environment
from memtune.wire.report import Device
from memtune_runner.command import accelerate_options, run_target
from memtune_runner.command.command import Kind
from memtune_runner.rank import ranks
from memtune_runner.rank.bad_input import BadInputError

if TYPE_CHECKING:
    from memtune_runner.rank.imports import ImportWatch
    from memtune_runner.rank.patches import Patches
    from memtune_runner.rank.ranks import Rank

_PAUSE_SECONDS = 0.1


def install(imports: ImportWatch, patches: Patches, rank: Rank) -> None:
    """Replace the launchers as soon as the program imports them."""
    imports.when_imported(
        "accelerate.commands.launch", lambda module: patches.wrap(module, "launch_command", _accelerate)
    )
    imports.when_imported("torch.distributed.run", lambda module: patches.wrap(module, "run", _torchrun))
    numbers = itertools.count(1)
    imports.when_imported(
        "torch.multiprocessing", lambda module: patches.wrap(module, "spawn", partial(_spawn, rank, numbers))
    )


def _accelerate(_launch: object, args: Any) -> None:
    for name, value in accelerate_options.variables_of_call(args).items():
        os.environ.setdefault(name, value)
    _run_script(args)


def _torchrun(_launch: object, args: Any) -> None:
    ranks.show_launcher(os.environ)
    _run_script(args)


def _spawn(
    rank: Rank,
    numbers: Iterator[int],
    spawn: Callable[..., Any],
    fn: Callable[..., None],  # named as torch names it, since callers name it, too
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    *others: Any,
    **options: Any,
) -> Any:
    """Run this rank's part where as many processes are asked for as the node has ranks; else start them.

    The code after it waits for all ranks, as it would for processes: it may read files that another one has written.
    """
    if nprocs != rank.local_world or not join:
        return spawn(fn, args, nprocs, join, *others, **options)
    directory, number = os.environ.get(environment.NODE_DIRECTORY), next(numbers)
    # On an emulated GPU one rank stands for all, so no other would arrive.
    if not directory or os.environ.get(environment.DEVICE) == Device.EMULATED:
        return fn(rank.local_rank, *args)
    ended = [Path(directory, f"spawn-{number}-rank-{each}-ended") for each in range(nprocs)]
    try:
        fn(rank.local_rank, *args)
    finally:
        ended[rank.local_rank].touch()
    while not all(each.exists() for each in ended):
        time.sleep(_PAUSE_SECONDS)
    return None


def _run_script(args: Any) -> None:
    if args.no_python:
        raise BadInputError(
            f"a launcher is called for {args.training_script}, which is no Python script; name that program in the "
            "job's command, without what calls the launcher"
        )
    kind = Kind.MODULE if args.module else Kind.SCRIPT
    run_target.run(kind, str(args.training_script), [str(each) for each in args.training_script_args])
