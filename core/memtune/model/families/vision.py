"""Vision-language decoders: a vision tower and a projector from its outputs to the text width."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memtune.model.architecture import Architecture, Head, Image, Kind, ModuleNames
from memtune.model.facts import Facts
from memtune.model.families import gated
from memtune.model.families.encoders import biased
from memtune.model.families.family import Family, head

TEXT = "gemma3_text"
_HEADS = {"ForConditionalGeneration": Head.LANGUAGE_MODEL, "Model": Head.LANGUAGE_MODEL}
_SIGLIP_NAMES = ModuleNames(output="out_proj", up="fc1", down="fc2")
# Keys of BERT-like models that this one lacks or names differently.
_NOT_SIGLIP = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "attention_dropout": 0.0,
    "vision_use_head": True,
}


def _gemma3(facts: Facts) -> Architecture:
    text = gated.FAMILIES[TEXT]
    inner = facts.nested("text_config").over({"model_type": TEXT, **text.defaults})
    inner.choice("model_type", [TEXT])
    seeing = head(facts, _HEADS, Head.LANGUAGE_MODEL)
    return replace(
        text.read(inner),
        name=facts.text("model_type"),
        head=seeing,
        tower=_siglip(facts.nested("vision_config").over(_SIGLIP)),
    )


def _siglip(facts: Facts) -> Architecture:
    facts.choice("model_type", ["siglip_vision_model"])
    if facts.flag("vision_use_head"):
        raise ValueError(
            f"{facts.path('vision_use_head')}: a tower with a pooling head, transformers' default, is not known; give "
            "the vision_config that was published, or for text alone the content of text_config with its model_type"
        )
    base = biased(facts.over(_NOT_SIGLIP), Kind.VISION, {"Model": Head.NONE}, _SIGLIP_NAMES)
    image = Image(facts.size("image_size"), facts.size("patch_size"), facts.size("num_channels"), class_token=False)
    return replace(base, attention_dropout=facts.rate("attention_dropout"), image=image)


# Google's files omit what are transformers' defaults in text_config, including heads and vocabulary.
FAMILIES = {"gemma3": Family(_gemma3, {"text_config": {}, "vision_config": {}})}
