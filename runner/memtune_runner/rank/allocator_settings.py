"""The settings of torch's allocator that a plan asks for, as torch reads them from the environment. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memtune.plans.plan import Plan

# The first is read since torch 2.9, where it goes before the second, which is all that older ones know.
_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
# Commas within brackets belong to one setting, such as roundup_power2_divisions:[256:1,512:2].
_SETTING = re.compile(r"[^,\[]+(?:\[[^\]]*\])?")


def variables(plan: Plan, current: Mapping[str, str]) -> dict[str, str]:
    """The variables with the plan's settings; those of the user's that no plan decides are kept."""
    own = next((current[name] for name in _NAMES if current.get(name)), "")
    settings = dict(_pairs(own))
    settings["expandable_segments"] = str(plan.expandable_segments)
    settings.pop("max_split_size_mb", None)
    if plan.max_split_size_mib:
        settings["max_split_size_mb"] = str(plan.max_split_size_mib)
    merged = ",".join(f"{key}:{value}" for key, value in settings.items())
    return dict.fromkeys(_NAMES, merged)


def _pairs(text: str) -> list[tuple[str, str]]:
    parts = (match.group().strip().partition(":") for match in _SETTING.finditer(text))
    return [(key.strip(), value.strip()) for key, separator, value in parts if separator]
