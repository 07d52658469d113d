"""The integration `env`: the script reads MEMTUNE variables, and finds a DeepSpeed configuration made for it."""

from __future__ import annotations

import json
import tempfile
from typing import Any

from memtune import environment
from memtune.deepspeed_config import deepspeed_config
from memtune.plan import Plan
from memtune_runner.settings import Settings, SettingsError


def prepare(settings: Settings) -> None:
    """Write the DeepSpeed configuration where the script looks for it: once per node, before its workers start."""
    path = settings.deepspeed_config
    if path is None or settings.plan.sharding.backend != "deepspeed":
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config_of(settings.plan, settings.world), indent=2) + "\n", encoding="ascii")
    except OSError as error:
        raise SettingsError(
            f"{environment.DEEPSPEED_CONFIG}={path}: the configuration cannot be written: {error.strerror}"
        ) from None


def config_of(plan: Plan, world: int) -> dict[str, Any]:
    """The DeepSpeed configuration of a plan; what it sends to NVMe goes to the disk of temporary files."""
    return deepspeed_config(plan, world, nvme_path=tempfile.gettempdir())
