"""`Family`: the reader and defaults of a config family, and what all readers share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memtune.model.architecture import Architecture, Head, Kind
from memtune.model.facts import Facts

# Heads by the end of the class name in ``architectures``.
DECODER_HEADS = {
    "ForCausalLM": Head.LANGUAGE_MODEL,
    "LMHeadModel": Head.LANGUAGE_MODEL,
    "ForSequenceClassification": Head.CLASSIFIER,
    "ForTokenClassification": Head.CLASSIFIER,
    "ForQuestionAnswering": Head.CLASSIFIER,
    "Model": Head.NONE,
}
ENCODER_HEADS = {
    "ForMaskedLM": Head.MASKED_LANGUAGE_MODEL,
    "ForSequenceClassification": Head.CLASSIFIER,
    "ForTokenClassification": Head.CLASSIFIER,
    "ForQuestionAnswering": Head.CLASSIFIER,
    "Model": Head.NONE,
}
PER_TOKEN_CLASSIFIERS = ("ForTokenClassification", "ForQuestionAnswering")
# The word before ``Model`` in a class name may mean another head, so it belongs to the end.
_CLASS_END = re.compile(r"For[A-Z]\w*$|(?:WithLMHead|LMHead|DoubleHeads|Encoder|)Model$")
# How many tensors of its own width autograd keeps of an activation, including the output, which the next product keeps
# (transformers activations.py). A kernel keeps its input, and ReLU its output; an activation in elementary operations
# keeps the inputs of each product and power.
_ACTIVATION_TENSORS = {"relu": 1, "quick_gelu": 3, "gelu_new": 5, "gelu_fast": 8}
_KERNEL_TENSORS = 2
_DEFAULT_LABELS = 2  # PretrainedConfig.num_labels


@dataclass(frozen=True)
class Family:
    """A reader, and transformers' defaults for missing keys of the config.

    ``aliases`` are the alternative names that transformers accepts for a key.
    """

    read: Callable[[Facts], Architecture]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict)


def class_end(facts: Facts) -> str:
    """The end of the model class in the config, such as ``ForCausalLM``; empty if it names none."""
    names = facts.value("architectures") if "architectures" in facts else []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{facts.path('architectures')}: {names!r} is not a list of class names")
    if not names:
        return ""
    end = _CLASS_END.search(names[0])
    return end[0] if end else str(names[0])


def head(facts: Facts, heads: Mapping[str, Head], default: Head) -> Head:
    """The head of the config's class."""
    end = class_end(facts)
    if end and end not in heads:
        known = ", ".join(f"…{name}" for name in heads)
        raise ValueError(
            f"{facts.path('architectures')}: {end!r} is a head that is not known for {facts.text('model_type')}; "
            f"use a class named {known}, or leave architectures out"
        )
    return heads[end] if end else default


def decoder_head(facts: Facts) -> Head:
    """The head of a decoder: of a bare one with tied embeddings a language-model head, which adds no parameters.

    Published configs name the bare class, and the jobs that train from them load the model with its head.
    """
    found = head(facts, DECODER_HEADS, Head.LANGUAGE_MODEL)
    return Head.LANGUAGE_MODEL if found is Head.NONE and facts.flag("tie_word_embeddings") else found


def decoder(facts: Facts, ffn_size: int, **others: Any) -> Architecture:
    """A decoder with the facts that all families name alike; ``others`` are the family's own."""
    found_head = decoder_head(facts)
    return Architecture(
        name=facts.text("model_type"),
        kind=Kind.DECODER,
        hidden_size=facts.size("hidden_size"),
        layers=facts.depth("num_hidden_layers"),
        heads=facts.size("num_attention_heads"),
        kv_heads=kv_heads(facts),
        head_dim=head_dim(facts),
        ffn_size=ffn_size,
        vocab_size=facts.size("vocab_size"),
        tied_embeddings=facts.flag("tie_word_embeddings"),
        attention_dropout=facts.rate("attention_dropout"),
        head=found_head,
        head_bias=class_end(facts) in PER_TOKEN_CLASSIFIERS,
        label_count=labels(facts) if found_head is Head.CLASSIFIER else 0,
        **others,
    )


def labels(facts: Facts) -> int:
    """The outputs of a classifier: as many as ``id2label`` names, else ``num_labels``."""
    if "id2label" in facts:
        return len(facts.nested("id2label").keys())
    return facts.size_or("num_labels", _DEFAULT_LABELS)


def activation_tensors(name: str) -> int:
    """The tensors that autograd keeps of an activation, by its name in transformers."""
    return _ACTIVATION_TENSORS.get(name, _KERNEL_TENSORS)


def head_dim(facts: Facts, hidden: str = "hidden_size", heads: str = "num_attention_heads") -> int:
    """The size of one attention head: as given, or the hidden size divided among the heads."""
    return facts.size("head_dim") if "head_dim" in facts else facts.share(hidden, among=heads)


def kv_heads(facts: Facts) -> int:
    """The key and value heads: as many as query heads unless given."""
    heads = facts.size("num_attention_heads")
    found = facts.size_or("num_key_value_heads", heads)
    if heads % found:
        path = facts.path("num_key_value_heads")
        assuming = facts.assuming("num_key_value_heads", "num_attention_heads")
        raise ValueError(f"{path}: {found} does not divide the {heads} attention heads (num_attention_heads){assuming}")
    return found
