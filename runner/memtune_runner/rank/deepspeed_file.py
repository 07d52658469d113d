"""Writes the DeepSpeed configuration of a plan to the file that a script reads. Imports no torch."""

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
    """Write the configuration file, once per node before its workers start."""
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
    """Return the DeepSpeed configuration of a plan in this run; NVMe offload goes to the path in the job."""
    return deepspeed_config(plan, settings.world, nvme_path=str(settings.nvme_path) if settings.nvme_path else None)


def _check_nvme(settings: Settings) -> None:
    path = settings.nvme_path
    if settings.plan.offload is Offload.NVME and path is not None and not os.access(path, os.W_OK | os.X_OK):
        problem = "it cannot be written to" if path.is_dir() else "there is no such directory"
        raise BadInputError(f"{environment.NVME_PATH}={path}: {problem}; mount a local NVMe disk there")
