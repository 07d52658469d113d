"""Parses the ``architecture`` block of a job into an `Architecture`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields
from typing import Any

from memtune.model.architecture import Architecture, Experts, Head, Image, Kind, ModuleNames
from memtune.model.facts import Facts
from memtune.words import camel

_NORMS = ["rmsnorm", "layernorm"]
# Facts with a reader of their own; every other field of the architecture is parsed by its type.
_SPECIAL = {"name", "kind", "heads", "kv_heads", "head_dim", "ffn_size", "vocab_size", "rms_norm", "head"}
# Fields that a job cannot set: one is written as `norm`, the others belong to transformers' families.
_UNWRITTEN = {
    *("rms_norm", "unquantized", "activation_tensors", "ffn_dropout", "attention_softcap", "logit_softcap"),
    *("makes_scores", "upcasts_loss", "upcasts_scores", "class_token", "tower"),
}
_READERS: dict[str, Callable[[Facts, str, Any], Any]] = {
    # A number whose default is 0 may be 0.
    "int": lambda facts, key, default: facts.count(key) if default == 0 else facts.size(key),
    "bool": lambda facts, key, _: facts.flag(key),
    "float": lambda facts, key, _: facts.rate(key),
    "str": lambda facts, key, _: facts.text(key),
}
_NESTED = {"experts": Experts, "image": Image, "module_names": ModuleNames}
_KNOWN = {camel(field.name) for field in fields(Architecture) if field.name not in _UNWRITTEN} | {"norm"}
_PLAIN = [field for field in fields(Architecture) if field.name not in {*_SPECIAL, *_NESTED, *_UNWRITTEN}]


def from_facts(given: dict[str, Any], where: str = "architecture") -> Architecture:
    """The architecture of plain camelCase facts."""
    facts = Facts(given, where)
    _refuse_unknown(facts, _KNOWN)
    values = {name: _nested(kind, facts.nested(camel(name))) for name, kind in _NESTED.items() if camel(name) in facts}
    values.update(_typed(facts, _PLAIN))
    values.update(_words(facts))
    values.update(_shape(facts, values["kind"], values.get("experts")))
    return _checked(Architecture(**values), facts)


def _shape(facts: Facts, kind: Kind, experts: Experts | None) -> dict[str, int]:
    """The facts whose default depends on other facts."""
    heads = facts.size("heads")
    return {
        "heads": heads,
        "kv_heads": facts.size_or("kvHeads", heads),
        "head_dim": facts.size("headDim") if "headDim" in facts else facts.share("hiddenSize", among="heads"),
        "ffn_size": facts.size("ffnSize") if experts is None else facts.size_or("ffnSize", experts.ffn_size),
        "vocab_size": facts.size_or("vocabSize", 0) if kind is Kind.VISION else facts.size("vocabSize"),
    }


def _words(facts: Facts) -> dict[str, Any]:
    """The facts that are words."""
    kind = Kind(facts.choice("kind", [k.value for k in Kind])) if "kind" in facts else Kind.DECODER
    found: dict[str, Any] = {"name": facts.text("name") if "name" in facts else kind.value, "kind": kind}
    if "norm" in facts:
        found["rms_norm"] = facts.choice("norm", _NORMS) == "rmsnorm"
    if "head" in facts:
        found["head"] = Head(facts.choice("head", [head.value for head in Head]))
    elif kind in (Kind.ENCODER, Kind.VISION):
        found["head"] = Head.NONE
    return found


def _nested(kind: Any, facts: Facts) -> Any:
    known = [field for field in fields(kind) if field.name not in _UNWRITTEN]
    _refuse_unknown(facts, {camel(field.name) for field in known})
    return kind(**_typed(facts, known))


def _typed(facts: Facts, wanted: Iterable[Field[Any]]) -> dict[str, Any]:
    """The fields that are given or have no default, each parsed by its type."""
    return {
        field.name: _READERS[str(field.type)](facts, camel(field.name), field.default)
        for field in wanted
        if camel(field.name) in facts or field.default is MISSING
    }


def _refuse_unknown(facts: Facts, known: set[str]) -> None:
    unknown = sorted(set(facts.keys()) - known)
    if unknown:
        raise ValueError(f"{facts.path(unknown[0])} is unknown; allowed are {', '.join(sorted(known))}")


def _checked(architecture: Architecture, facts: Facts) -> Architecture:
    """Reject facts that contradict each other."""
    a = architecture
    if a.heads % a.kv_heads:
        raise ValueError(f"{facts.path('kvHeads')}: {a.kv_heads} does not divide the {a.heads} attention heads (heads)")
    if (a.kind is Kind.ENCODER_DECODER) != (a.encoder_layers > 0):
        raise ValueError(
            f"{facts.path('encoderLayers')}: {a.encoder_layers} with kind {a.kind.value}; "
            "an encoder-decoder needs at least 1, and any other kind has none"
        )
    if (a.kind is Kind.VISION) != (a.image is not None):
        raise ValueError(
            f"{facts.path('image')}: kind vision needs an image (size, patchSize), and any other kind has none"
        )
    if (a.head is Head.CLASSIFIER) != (a.label_count > 0):
        raise ValueError(
            f"{facts.path('labelCount')}: {a.label_count} with head {a.head.value}; "
            "a classifier needs at least 1, and any other head has none"
        )
    if a.experts:
        _check_experts(a.experts, a.layers, facts.nested("experts"))
    return a


def _check_experts(experts: Experts, layers: int, facts: Facts) -> None:
    if experts.per_token > experts.count:
        path = facts.path("perToken")
        raise ValueError(f"{path}: {experts.per_token} is more than the {experts.count} experts there are (count)")
    if experts.dense_layers >= layers:
        path = facts.path("denseLayers")
        raise ValueError(f"{path}: {experts.dense_layers} leaves none of the {layers} layers (layers) for the experts")


# Weights, gradients and states of mixed precision under AdamW (1910.02054, section 3.1).
_STATE_BYTES = 16

# The fraction of total memory that states sharded over all ranks are assumed to take.
_SHARE = 0.25

_LAYERS = 32

_HEADS = 16

# A decoder's block has 12 x width^2 weights (2001.08361, table 1).
_WEIGHTS = 12


def assumed_architecture(usable_bytes: int, world: int) -> Architecture:
    """A decoder of the size that people choose for this many GPUs."""
    parameters = usable_bytes * world * _SHARE / _STATE_BYTES
    width = max(round((parameters / (_WEIGHTS * _LAYERS)) ** 0.5 / _HEADS), 1) * _HEADS
    facts = {"hiddenSize": width, "layers": _LAYERS, "heads": _HEADS, "ffnSize": 4 * width, "vocabSize": width}
    return from_facts(facts, "an assumed model")
