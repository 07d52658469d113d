"""Ranks that a script starts by itself: the process on the emulated GPU is the first of them and stands for all."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from memtune_runner.emulated.ranks import GPUS_PER_NODE


def install(ranks: int) -> None:
    """Replace `torch.multiprocessing.spawn`, whose processes would have an emulated GPU each that nobody reads."""
    package: Any = import_module("torch.multiprocessing")
    import_module("torch.multiprocessing.spawn")
    module: Any = sys.modules["torch.multiprocessing.spawn"]  # the package has a function of the same name
    plain = module.spawn

    @functools.wraps(plain)
    def spawn(
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

    module.spawn = package.spawn = spawn


class _Ended:
    """What `spawn` returns to a script that waits for the processes by itself."""

    def join(self, *_: Any, **__: Any) -> bool:
        """Say that all processes have ended."""
        return True
