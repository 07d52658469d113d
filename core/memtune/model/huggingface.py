"""Reads the content of a Hugging Face ``config.json``."""

from __future__ import annotations

from typing import Any

from memtune.model.architecture import Architecture
from memtune.model.facts import Facts
from memtune.model.families import classic, encoders, gated, seeing
from memtune.model.families.family import Family

FAMILIES: dict[str, Family] = {**gated.FAMILIES, **classic.FAMILIES, **encoders.FAMILIES, **seeing.FAMILIES}

# What decides how large a model is. transformers leaves them out of a file only where they are its own defaults; a
# person may have forgotten them, or misspelt them.
_SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("num_experts", "num_local_experts", "moe_intermediate_size"),
)


def from_hf_config(config: dict[str, Any], where: str = "hfConfig") -> Architecture:
    """The architecture that a config describes; a missing key takes its family's default."""
    given = Facts(config, where)
    known = f"known are {', '.join(sorted(FAMILIES))}; for another model give `architecture` with its plain facts"
    if "model_type" not in given:
        raise ValueError(f"{given.path('model_type')} is missing; {known}")
    model_type = given.text("model_type")
    if model_type not in FAMILIES:
        hint = " (this config holds several models: for the text model alone, give the content of its text_config)"
        raise ValueError(
            f"{given.path('model_type')}: {model_type!r} is unknown{hint if 'text_config' in given else ''}; {known}"
        )
    family = FAMILIES[model_type]
    return family.read(given.renamed(family.aliases).over(family.defaults))


def defaulted_sizes(config: dict[str, Any]) -> dict[str, int]:
    """The sizes of a readable config that it leaves to its family's defaults, as these are."""
    if config["model_type"] in seeing.FAMILIES:
        return defaulted_sizes({"model_type": seeing.TEXT, **(config.get("text_config") or {})})
    family = FAMILIES[config["model_type"]]
    given = Facts(config, "").renamed(family.aliases)
    return {name: family.defaults[name] for name in _SIZES if name in family.defaults and name not in given}
