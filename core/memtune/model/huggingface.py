"""Parses a Hugging Face ``config.json`` into an `Architecture`."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from memtune.model.architecture import Architecture
from memtune.model.facts import Facts
from memtune.model.families import classic, encoders, gated, vision
from memtune.model.families.family import Family

FAMILIES: dict[str, Family] = {**gated.FAMILIES, **classic.FAMILIES, **encoders.FAMILIES, **vision.FAMILIES}

# The keys that determine a model's size. transformers omits them from a file only if they have its defaults; a person
# may have forgotten or misspelt them.
_SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"),
    *("num_experts", "num_local_experts", "moe_intermediate_size"),
)
# As similar as num_kv_heads and num_key_value_heads, and no less than any two keys of one config of transformers.
_ALIKE = 0.75


def from_hf_config(config: dict[str, Any], where: str = "hfConfig") -> Architecture:
    """The architecture of a config; a missing key takes its family's default."""
    given = Facts(config, where)
    known = (
        f"known are {', '.join(sorted(FAMILIES))}; for another model give `architecture` with its plain facts, or "
        "where they do not describe it `factory`, a function that builds it, which is traced"
    )
    if "model_type" not in given:
        raise ValueError(f"{given.path('model_type')} is missing; {known}")
    model_type = given.text("model_type")
    if model_type not in FAMILIES:
        several = " (this config holds several models: for the text model alone, give the content of its text_config)"
        alike = get_close_matches(model_type, FAMILIES, 1, _ALIKE)
        raise ValueError(
            f"{given.path('model_type')}: {model_type!r} is unknown{several if 'text_config' in given else ''}; "
            f"{f'did you mean {alike[0]}? ' if alike else ''}{known}"
        )
    family = FAMILIES[model_type]
    try:
        return family.read(given.renamed(family.aliases).over(family.defaults))
    except ValueError as error:
        raise ValueError("; ".join([str(error), *misspelt(config)])) from None


def defaulted_sizes(config: dict[str, Any]) -> dict[str, int]:
    """The sizes that a valid config leaves to its family's defaults, with their values."""
    if config["model_type"] in vision.FAMILIES:
        return defaulted_sizes({"model_type": vision.TEXT, **(config.get("text_config") or {})})
    family = FAMILIES[config["model_type"]]
    given = Facts(config, "").renamed(family.aliases)
    return {name: family.defaults[name] for name in _SIZES if name in family.defaults and name not in given}


def misspelt(config: dict[str, Any]) -> list[str]:
    """Keys of a config that its family does not have and that resemble an omitted size.

    Most other unread keys are transformers' own, and memory does not depend on them.
    """
    if config["model_type"] in vision.FAMILIES:
        text = config.get("text_config")
        return misspelt({**text, "model_type": vision.TEXT}) if isinstance(text, dict) else []
    family = FAMILIES[config["model_type"]]
    known = {**{name: name for name in family.defaults}, **family.aliases}
    if config["model_type"] in gated.FAMILIES:
        known["num_key_value_heads"] = "num_key_value_heads"
    given = Facts(config, "").renamed(family.aliases)
    sizes = [name for name, first in known.items() if first not in given and _is_size(family.defaults.get(first, 1))]
    unknown = [key for key in map(str, config) if key not in known]
    alike = {key: get_close_matches(key, sizes, 1, _ALIKE) for key in unknown}
    return [f"{key} is unknown: did you mean {names[0]}?" for key, names in alike.items() if names]


def _is_size(default: Any) -> bool:
    return isinstance(default, int) and not isinstance(default, bool)
