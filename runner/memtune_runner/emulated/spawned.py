"""Ranks that a script starts by itself: the process on the emulated GPU is the first of them and stands for all."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from memtune_runner.emulated.ranks import GPUS_PER_NODE
from memtune_runner.rank.imports import ImportWatch

# Lightning is one package or several.
_LIGHTNING = ("lightning.fabric.accelerators.cuda", "lightning_fabric.accelerators.cuda")


def install(ranks: int) -> None:
    """Replace what starts processes in torch, which would have an emulated GPU each that nobody reads."""
    package: Any = import_module("torch.multiprocessing")
    import_module("torch.multiprocessing.spawn")
    module: Any = sys.modules["torch.multiprocessing.spawn"]  # the package has a function of the same name
    plain = module.start_processes  # `spawn` calls it, too

    @functools.wraps(plain)
    def start_processes(
        fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, *rest: Any, **more: Any
    ) -> Any:
        if nprocs not in (1, ranks, min(ranks, GPUS_PER_NODE)):
            print(
                f"memtune: emulated GPU: the script starts {nprocs} processes, whose memory is not in the result; "
                f"if they are its ranks, give --ranks {nprocs}, and one stands for all",
                file=sys.stderr,
                flush=True,
            )
            return plain(fn, args, nprocs, join, *rest, **more)
        fn(0, *args)
        return None if join else _Ended()

    module.start_processes = package.start_processes = start_processes
    watch = ImportWatch()
    for name in _LIGHTNING:
        watch.when_imported(name, _count_ranks)
    watch.when_imported("torch.distributed.launcher.api", _launch_no_agent)
    watch.install()


class _Ended:
    """What torch returns to a script that waits for the processes by itself."""

    def __init__(self) -> None:
        self.processes: list[Any] = []

    def pids(self) -> list[int]:
        """Return the process that stood for all."""
        return [os.getpid()]

    def join(self, *_: Any, **__: Any) -> bool:
        """Say that all processes have ended."""
        return True


def _count_ranks(module: Any) -> None:
    """Let Lightning find a GPU for each rank of the node: it refuses more devices than there are, and uses one."""
    module.num_cuda_devices = lambda: int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _launch_no_agent(module: Any) -> None:
    """Run a function that torchrun's agent would start: the agent would wait for what all ranks return."""
    plain = module.launch_agent

    @functools.wraps(plain)
    def launch_agent(config: Any, entrypoint: Any, args: list[Any], **more: Any) -> Any:
        if not callable(entrypoint) or str(config.nproc_per_node) != os.environ.get("LOCAL_WORLD_SIZE"):
            return plain(config, entrypoint, args, **more)
        return {0: entrypoint(*args)}

    module.launch_agent = launch_agent
