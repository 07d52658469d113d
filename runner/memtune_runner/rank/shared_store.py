"""The key-value store of the process group, for what ranks share outside collectives."""

from __future__ import annotations

import os
import sys
from typing import Any

from memtune.wire import environment
from memtune.wire.report import Device


def of_all_ranks() -> Any | None:
    """Return the default process group's store; None for a single rank or a backend without a store.

    On an emulated GPU one rank stands for all, so nobody else would answer.
    """
    if os.environ.get(environment.DEVICE) == Device.EMULATED:
        return None
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    if distributed.get_world_size() == 1 or distributed.get_backend() == "mpi":
        return None
    return distributed.distributed_c10d._get_default_store()
