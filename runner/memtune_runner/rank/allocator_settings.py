"""The plan's settings for torch's CUDA allocator, as environment variables. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from memtune.plans.plan import Plan

# torch 2.9 and later read the first, and prefer it to the second; older versions know only the second.
_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
# Commas within brackets belong to one setting, as in roundup_power2_divisions:[256:1,512:2].
_SETTING = re.compile(r"[^,\[]+(?:\[[^\]]*\])?")


def variables(plan: Plan, current: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with the plan's settings; the user's settings that the plan does not decide are kept."""
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
