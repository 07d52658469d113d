"""What a family is, and what the readers of all families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memtune.model.architecture import Architecture, Head
from memtune.model.facts import Facts

# By the end of the class name in ``architectures``; the first that fits counts.
_HEADS = {
    "ForCausalLM": Head.LANGUAGE_MODEL,
    "LMHeadModel": Head.LANGUAGE_MODEL,
    "ForConditionalGeneration": Head.LANGUAGE_MODEL,
    "ForMaskedLM": Head.MASKED_LANGUAGE_MODEL,
    "ForSequenceClassification": Head.CLASSIFIER,
    "ForTokenClassification": Head.CLASSIFIER,
    "ForImageClassification": Head.CLASSIFIER,
    "Model": Head.NONE,
}
_DEFAULT_LABELS = 2  # PretrainedConfig.num_labels


@dataclass(frozen=True)
class Family:
    """A reader, and what transformers assumes when a key of the config is missing.

    ``aliases`` are the second names that transformers accepts for a key.
    """

    read: Callable[[Facts], Architecture]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)


def class_name(facts: Facts) -> str:
    """The model class that the config names, or an empty text."""
    names = facts.value("architectures") if "architectures" in facts else []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{facts.path('architectures')}: {names!r} is not a list of class names")
    return names[0] if names else ""


def head(facts: Facts, default: Head) -> Head:
    """The head that the config's class has."""
    name = class_name(facts)
    if not name:
        return default
    for end, kind in _HEADS.items():
        if name.endswith(end):
            return kind
    known = ", ".join(f"…{end}" for end in _HEADS)
    raise ValueError(f"{facts.path('architectures')}: {name!r} has a head that is not known; use a class {known}")


def labels(facts: Facts) -> int:
    """The outputs of a classifier: ``num_labels``, or as many as ``id2label`` names."""
    if "id2label" in facts:
        return len(facts.nested("id2label").keys())
    return facts.size_or("num_labels", _DEFAULT_LABELS)


def head_dim(facts: Facts, hidden: str = "hidden_size", heads: str = "num_attention_heads") -> int:
    """The size of one attention head: as given, or the hidden size shared among the heads."""
    return facts.size("head_dim") if "head_dim" in facts else facts.share(hidden, among=heads)


def kv_heads(facts: Facts) -> int:
    """The key and value heads: as many as query heads unless given."""
    heads = facts.size("num_attention_heads")
    found = facts.size_or("num_key_value_heads", heads)
    if heads % found:
        path = facts.path("num_key_value_heads")
        raise ValueError(f"{path}: {found} does not divide the {heads} attention heads (num_attention_heads)")
    return found
