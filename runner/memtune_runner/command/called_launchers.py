"""Intercepts launchers that a program calls as a function: `trl sft` calls accelerate's, `tune run` torch's.

Workers started by them would escape MemTune. The calling process already is a rank, so it runs the script itself, or
its part of what ``torch.multiprocessing.spawn`` would start, and the launcher returns when that has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from memtune_runner.command import accelerate_options, run_target
from memtune_runner.command.command import Kind
from memtune_runner.rank import ranks
from memtune_runner.rank.bad_input import BadInputError

if TYPE_CHECKING:
    from memtune_runner.rank.imports import ImportWatch
    from memtune_runner.rank.patches import Patches
    from memtune_runner.rank.ranks import Rank


def install(imports: ImportWatch, patches: Patches, rank: Rank) -> None:
    """Replace the launchers as soon as the program imports them."""
    imports.when_imported(
        "accelerate.commands.launch", lambda module: patches.wrap(module, "launch_command", _accelerate)
    )
    imports.when_imported("torch.distributed.run", lambda module: patches.wrap(module, "run", _torchrun))
    imports.when_imported("torch.multiprocessing", lambda module: patches.wrap(module, "spawn", partial(_spawn, rank)))


def _accelerate(_launch: object, args: Any) -> None:
    for name, value in accelerate_options.variables_of_call(args).items():
        os.environ.setdefault(name, value)
    _run_script(args)


def _torchrun(_launch: object, args: Any) -> None:
    ranks.show_launcher(os.environ)
    _run_script(args)


def _spawn(
    rank: Rank,
    spawn: Callable[..., Any],
    fn: Callable[..., None],  # named as torch names it, since callers name it, too
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    *others: Any,
    **options: Any,
) -> Any:
    """Run this rank's part where as many processes are asked for as the node has ranks; else start them."""
    if nprocs != rank.local_world or not join:
        return spawn(fn, args, nprocs, join, *others, **options)
    return fn(rank.local_rank, *args)


def _run_script(args: Any) -> None:
    if args.no_python:
        raise BadInputError(
            f"a launcher is called for {args.training_script}, which is no Python script; name that program in the "
            "job's command, without what calls the launcher"
        )
    kind = Kind.MODULE if args.module else Kind.SCRIPT
    run_target.run(kind, str(args.training_script), [str(each) for each in args.training_script_args])
