"""The architecture facts in a job are those of the model reader, with the same defaults."""

from __future__ import annotations

from dataclasses import MISSING, fields

from memtune.api.architecture import ArchitectureFacts, ExpertFacts, ImageFacts
from memtune.api.fields import SpecBlock
from memtune.model.architecture import Architecture, Experts, Image

# `norm` is how a job writes rms_norm. The rest comes with Hugging Face families and has no plain fact.
NOT_WRITTEN = {"name", "rms_norm", "unquantized", "activation_tensors", "module_names", "tower"}
NOT_WRITTEN |= {"ffn_dropout", "makes_scores", "attention_softcap", "logit_softcap", "upcasts_loss", "upcasts_scores"}
# Their defaults derive from other facts.
DERIVED = {"kv_heads", "head_dim", "ffn_size", "vocab_size", "head", "kind"}


def assert_same(block: type[SpecBlock], facts: type, extra: set[str], missing: set[str]) -> None:
    known = {field.name: field.default for field in fields(facts)}
    written = {name: field.get_default() for name, field in block.model_fields.items()}
    assert set(written) == set(known) - missing | extra
    for name in set(written) & set(known) - DERIVED:
        if known[name] is not MISSING:
            assert written[name] == known[name], name


def test_a_job_can_write_every_fact_of_an_architecture() -> None:
    assert_same(ArchitectureFacts, Architecture, {"norm"}, NOT_WRITTEN)
    assert_same(ExpertFacts, Experts, set(), set())
    assert_same(ImageFacts, Image, set(), {"class_token"})
