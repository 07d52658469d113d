"""Ranks that a script starts by itself: the process on the emulated GPU is one of them and stands for all."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from memtune_runner.emulated.rank_count import GPUS_PER_NODE
from memtune_runner.rank.imports import ImportWatch

# Variables that the agent sets for the only process that it starts; for several, the emulation sets them.
_ALONE = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
}  # fmt: skip


def install(ranks: int) -> None:
    """Replace torch's functions that start processes: each process would have its own emulated GPU, which is unread."""
    package: Any = import_module("torch.multiprocessing")
    import_module("torch.multiprocessing.spawn")
    module: Any = sys.modules["torch.multiprocessing.spawn"]  # the package has a function of the same name
    plain = module.start_processes  # `spawn` calls it, too
    ranks_of_node = int(os.environ.get("LOCAL_WORLD_SIZE") or min(ranks, GPUS_PER_NODE))

    @functools.wraps(plain)
    def start_processes(
        fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, *rest: Any, **more: Any
    ) -> Any:
        # One that the script does not wait for is a helper, which needs what the script does meanwhile.
        is_helper = nprocs == 1 and not join
        if is_helper or nprocs not in (1, ranks, ranks_of_node):
            advice = "" if is_helper else f"; if they are its ranks, give --ranks {nprocs}, and one stands for all"
            started = "a process" if nprocs == 1 else f"{nprocs} processes"
            print(
                f"memtune: emulated GPU: the script starts {started}, whose memory is counted apart{advice}",
                file=sys.stderr,
                flush=True,
            )
            return plain(fn, args, nprocs, join, *rest, **more)
        _as_the_rank(fn, int(os.environ.get("RANK", "0")) % nprocs, *args)
        return None if join else _Ended()

    module.start_processes = package.start_processes = start_processes
    watch = ImportWatch()
    counts = {str(each) for each in (1, ranks, ranks_of_node)}
    watch.when_imported("torch.distributed.launcher.api", lambda module: _launch_no_agent(module, counts))
    watch.install()


def _as_the_rank(fn: Callable[..., Any], *args: Any) -> Any:
    """Call the function of the process in this one: it may exit, and takes its process group along."""
    distributed: Any = import_module("torch.distributed")
    had_group = distributed.is_initialized()
    try:
        return fn(*args)
    except SystemExit as error:
        if error.code:
            raise
        return None
    finally:
        if distributed.is_initialized() and not had_group:
            distributed.destroy_process_group()


class _Ended:
    """The object that torch returns to a script that waits for the processes by itself."""

    def __init__(self) -> None:
        self.processes: list[Any] = []

    def pids(self) -> list[int]:
        """Return none: a script may end the processes that it gets."""
        return []

    def join(self, *_: Any, **__: Any) -> bool:
        """Say that all processes have ended."""
        return True


def _launch_no_agent(module: Any, counts: set[str]) -> None:
    """Run a function that torchrun's agent would start: the agent would wait for what all ranks return."""
    plain = module.launch_agent

    @functools.wraps(plain)
    def launch_agent(config: Any, entrypoint: Any, args: list[Any], **more: Any) -> Any:
        if not callable(entrypoint) or str(config.nproc_per_node) not in counts:
            return plain(config, entrypoint, args, **more)
        for name, value in _ALONE.items():
            os.environ.setdefault(name, value)
        return {0: _as_the_rank(entrypoint, *args)}

    module.launch_agent = launch_agent
