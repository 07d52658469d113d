"""The built-in decoder has exactly the predicted parameter count, and it learns."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from described_models import CONFIGS, LENGTH, traced
from gpu_trace import traced_model
from torch.nn import functional

from memtune.memory.replay import Replayer
from memtune.model.architecture import Architecture
from memtune.model.count import parameters
from memtune.model.huggingface import from_hf_config
from memtune.model.plain import from_facts
from memtune.plans.knobs import Attention
from memtune.plans.plan import Plan
from memtune_runner.engine.decoder import Decoder, read_architecture

TINY = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**TINY, "model_type": "llama", "num_key_value_heads": 2, "intermediate_size": 48},
    "qwen3": {**TINY, "model_type": "qwen3", "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8},
    "gemma2": {**TINY, "model_type": "gemma2", "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8},
    "gpt2": {"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16},
    "phi": {**TINY, "model_type": "phi", "intermediate_size": 48},
    "opt": {**TINY, "model_type": "opt", "ffn_dim": 48, "max_position_embeddings": 16, "word_embed_proj_dim": 16},
    "mixtral": {
        **TINY,
        "model_type": "mixtral",
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}
PLAIN = {"hiddenSize": 32, "layers": 2, "heads": 4, "kvHeads": 2, "ffnSize": 48, "vocabSize": 64}


@pytest.mark.parametrize("family", FAMILIES)
def test_it_has_the_parameters_that_are_predicted(family: str) -> None:
    facts = from_hf_config(FAMILIES[family])
    model = Decoder(facts)
    assert sum(each.numel() for each in model.parameters()) == parameters(facts).total
    loss = model(_tokens()).float().logsumexp(-1).mean()
    loss.backward()
    assert all(each.grad is not None for each in model.parameters()), "DDP waits for every gradient"


def _tokens() -> torch.Tensor:
    return torch.arange(32).view(2, 16)


def test_every_attention_and_loss_computes_the_same() -> None:
    facts = from_facts(PLAIN)
    torch.manual_seed(0)
    flash, tokens = Decoder(facts), _tokens()
    eager = Decoder(facts, Attention.EAGER)
    eager.load_state_dict(flash.state_dict())
    torch.testing.assert_close(flash(tokens), eager(tokens))
    plain = functional.cross_entropy(flash(tokens).flatten(0, 1), tokens.flatten())
    torch.testing.assert_close(flash(tokens, tokens), plain)


def test_scores_and_logits_are_capped() -> None:
    capped = replace(from_facts(PLAIN), attention_softcap=0.1, logit_softcap=0.01)
    torch.manual_seed(0)
    plain, tokens = Decoder(from_facts(PLAIN)), _tokens()
    bounded = [Decoder(each) for each in (capped, replace(capped, attention_softcap=0.0))]
    for model in bounded:
        model.load_state_dict(plain.state_dict())
    torch.testing.assert_close(bounded[1](tokens), 0.01 * torch.tanh(plain(tokens) / 0.01))
    assert not torch.equal(bounded[0](tokens), bounded[1](tokens))


def test_shared_heads_compute_the_same_in_16_bits_as_in_32() -> None:
    torch.manual_seed(0)
    model, tokens = Decoder(from_facts(PLAIN)), _tokens()
    narrow = Decoder(from_facts(PLAIN)).bfloat16()
    narrow.load_state_dict(model.state_dict())
    torch.testing.assert_close(narrow(tokens).float(), model(tokens), atol=0.01, rtol=0.02)


@pytest.mark.parametrize(("numerics", "short"), [("autocast", "bf16-ddp-none-mb16x1"), ("half", "bf16-z2-sel-mb16x1")])
def test_it_keeps_the_same_activations_as_transformers(numerics: str, short: str) -> None:
    facts, plan = from_hf_config(CONFIGS["llama-tiny"]), Plan.parse(short)
    built_in = traced_model("llama-tiny", facts, LENGTH, [numerics]).trace
    expected = Replayer(traced("llama-tiny", [numerics])).replay(plan).phases
    for name, peak in Replayer(built_in).replay(plan).phases.items():
        assert peak.requested == pytest.approx(expected[name].requested, rel=0.01), name


def test_no_token_sees_the_future() -> None:
    model, tokens = Decoder(from_facts(PLAIN)).eval(), _tokens()
    changed = tokens.clone()
    changed[:, 8:] = 0
    torch.testing.assert_close(model(tokens)[:, :8], model(changed)[:, :8])
    assert not torch.allclose(model(tokens)[:, 8:], model(changed)[:, 8:])


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_the_architecture_survives_its_variable(family: str) -> None:
    facts = replace(from_hf_config(FAMILIES[family]), tower=from_hf_config({"model_type": "vit"}))
    assert read_architecture(json.loads(json.dumps(asdict(facts)))) == facts


def test_an_architecture_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ValueError, match="the architecture cannot be read"):
        read_architecture({"kind": "decoder", "colour": "red"})


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        (from_hf_config({"model_type": "bert"}), "not encoder models with head none"),
        (replace(from_facts(PLAIN), norms_per_layer=3), "not 3 norms in a layer"),
        (replace(from_facts(PLAIN), token_type_count=2), "token types"),
        (replace(from_facts(PLAIN), tower=from_hf_config({"model_type": "vit"})), "a vision tower"),
    ],
)
def test_an_architecture_that_is_no_plain_decoder_is_refused(facts: Architecture, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Decoder(facts)
