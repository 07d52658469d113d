"""The DeepSpeed configuration of a run, and the file in which a script finds it. Imports no torch."""

from __future__ import annotations

import json
import os
from typing import Any

from memtune.plans.deepspeed_config import deepspeed_config
from memtune.plans.knobs import Offload
from memtune.plans.plan import Plan
from memtune.wire import environment
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.settings import Settings


def prepare(settings: Settings) -> None:
    """Write the configuration where the script looks for it: once per node, before its workers start."""
    _check_nvme(settings)
    path = settings.deepspeed_config
    if path is None or settings.plan.sharding.backend != "deepspeed":
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config_of(settings, settings.plan), indent=2) + "\n", encoding="ascii")
    except OSError as error:
        raise BadInputError(
            f"{environment.DEEPSPEED_CONFIG}={path}: the configuration cannot be written: {error.strerror}"
        ) from None


def config_of(settings: Settings, plan: Plan) -> dict[str, Any]:
    """The configuration of a plan in this run; what it sends to NVMe goes where the job says."""
    return deepspeed_config(plan, settings.world, nvme_path=str(settings.nvme_path) if settings.nvme_path else None)


def _check_nvme(settings: Settings) -> None:
    path = settings.nvme_path
    if settings.plan.offload is Offload.NVME and path is not None and not os.access(path, os.W_OK | os.X_OK):
        problem = "it cannot be written to" if path.is_dir() else "there is no such directory"
        raise BadInputError(f"{environment.NVME_PATH}={path}: {problem}; mount a local NVMe disk there")
