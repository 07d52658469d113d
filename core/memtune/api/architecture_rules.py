"""Validation rules between the fields of `spec.model.architecture`."""

from __future__ import annotations

from collections.abc import Callable

from memtune.api.architecture import ArchitectureFacts
from memtune.api.errors import Problem
from memtune.api.job import JobSpec
from memtune.api.rule import REQUIRED, Rule
from memtune.model.architecture import Kind

# Path inside the block, the given value, and the advice.
_Found = tuple[str, object, str] | None


def _of_architecture(
    find: Callable[[ArchitectureFacts], tuple[str, object, str] | None],
) -> Callable[[JobSpec], Problem | None]:
    """A rule inside ``spec.model.architecture``, if the job has that block."""

    def check(spec: JobSpec) -> Problem | None:
        found = find(spec.model.architecture) if spec.model.architecture else None
        return Problem(f"spec.model.architecture.{found[0]}", found[1], found[2]) if found else None

    return check


def _kv_heads_divide(facts: ArchitectureFacts) -> _Found:
    if facts.kv_heads is None or facts.heads % facts.kv_heads == 0:
        return None
    return "kvHeads", facts.kv_heads, f"{facts.heads} heads cannot share {facts.kv_heads} key and value heads evenly"


def _heads_divide(facts: ArchitectureFacts) -> _Found:
    if facts.head_dim is not None or facts.hidden_size % facts.heads == 0:
        return None
    advice = f"hiddenSize {facts.hidden_size} cannot be divided among {facts.heads} heads; give headDim"
    return "headDim", None, advice


def _encoder_has_layers(facts: ArchitectureFacts) -> _Found:
    if (facts.kind is Kind.ENCODER_DECODER) == (facts.encoder_layers > 0):
        return None
    advice = f"{facts.encoder_layers} does not go with kind {facts.kind.value}; only an encoder-decoder has them"
    return "encoderLayers", facts.encoder_layers, advice


def _experts_are_enough(facts: ArchitectureFacts) -> _Found:
    experts = facts.experts
    if experts is None or experts.per_token <= experts.count:
        return None
    advice = f"{experts.per_token} is more than the {experts.count} experts of a layer"
    return "experts.perToken", experts.per_token, f"{advice}; use at most {experts.count}"


def _experts_have_layers(facts: ArchitectureFacts) -> _Found:
    experts = facts.experts
    if experts is None or experts.dense_layers < facts.layers:
        return None
    advice = f"{experts.dense_layers} leaves none of the {facts.layers} layers to the experts; use fewer"
    return "experts.denseLayers", experts.dense_layers, advice


def _ffn_has_size(facts: ArchitectureFacts) -> _Found:
    if facts.ffn_size is not None or (facts.experts and not facts.experts.dense_layers):
        return None
    return "ffnSize", None, "layers without experts have a feed-forward; give its width"


def _text_has_vocabulary(facts: ArchitectureFacts) -> _Found:
    if facts.vocab_size is not None or facts.kind is Kind.VISION:
        return None
    return "vocabSize", None, f"a model of kind {facts.kind.value} reads tokens; give the rows of its embedding"


def _vision_has_image(facts: ArchitectureFacts) -> _Found:
    if (facts.kind is Kind.VISION) == (facts.image is not None):
        return None
    return "image", facts.image, f"kind is {facts.kind.value}; kind vision needs an image, and any other kind has none"


def _classifier_has_labels(facts: ArchitectureFacts) -> _Found:
    if (facts.head == "classifier") == (facts.label_count > 0):
        return None
    advice = f"{facts.label_count} does not go with this head; a classifier has labels, and nothing else has"
    return "labelCount", facts.label_count, advice


ARCHITECTURE_RULES = (
    Rule(
        "spec.model.architecture",
        "spec.model.architecture.kvHeads",
        "!has(self.kvHeads) || self.kvHeads < 1 || self.heads % self.kvHeads == 0",
        "heads must be divisible by kvHeads",
        _of_architecture(_kv_heads_divide),
    ),
    Rule(
        "spec.model.architecture",
        "spec.model.architecture.headDim",
        "has(self.headDim) || self.heads < 1 || self.hiddenSize % self.heads == 0",
        "hiddenSize cannot be divided among the heads; give headDim",
        _of_architecture(_heads_divide),
        REQUIRED,
    ),
    Rule(
        "spec.model.architecture",
        "spec.model.architecture.encoderLayers",
        "(self.kind == 'encoder-decoder') == (self.encoderLayers > 0)",
        "an encoder-decoder has encoderLayers, and nothing else has",
        _of_architecture(_encoder_has_layers),
    ),
    Rule(
        "spec.model.architecture",
        "spec.model.architecture.experts.perToken",
        "!has(self.experts) || self.experts.perToken <= self.experts.count",
        "experts.perToken must be at most experts.count",
        _of_architecture(_experts_are_enough),
    ),
    Rule(
        "spec.model.architecture",
        "spec.model.architecture.experts.denseLayers",
        "!has(self.experts) || self.experts.denseLayers < self.layers",
        "experts.denseLayers must leave layers to the experts",
        _of_architecture(_experts_have_layers),
    ),
    Rule(
        "spec.model.architecture",
        "spec.model.architecture.ffnSize",
        "has(self.ffnSize) || (has(self.experts) && self.experts.denseLayers == 0)",
        "ffnSize is required unless every layer has experts",
        _of_architecture(_ffn_has_size),
        REQUIRED,
    ),
    Rule(
        "spec.model.architecture",
        "spec.model.architecture.vocabSize",
        "has(self.vocabSize) || self.kind == 'vision'",
        "vocabSize is required unless kind is vision",
        _of_architecture(_text_has_vocabulary),
        REQUIRED,
    ),
    Rule(
        "spec.model.architecture",
        "spec.model.architecture.image",
        "(self.kind == 'vision') == has(self.image)",
        "kind vision needs an image, and any other kind has none",
        _of_architecture(_vision_has_image),
    ),
    Rule(
        "spec.model.architecture",
        "spec.model.architecture.labelCount",
        "(has(self.head) && self.head == 'classifier') == (self.labelCount > 0)",
        "labelCount: a classifier has labels, and nothing else has",
        _of_architecture(_classifier_has_labels),
    ),
)
