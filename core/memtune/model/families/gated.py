"""Llama-like decoders: rotary positions, RMSNorm, gated feed-forward, grouped key and value heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memtune.model.architecture import Architecture, Experts, ModuleNames
from memtune.model.facts import Facts
from memtune.model.families.family import Family, decoder

_MIXTRAL_NAMES = ModuleNames(ffn="block_sparse_moe", gate="w1", down="w2", up="w3")
_PHI3_NAMES = ModuleNames(query="qkv_proj", key="qkv_proj", value="qkv_proj", gate="gate_up_proj", up="gate_up_proj")


def _rotary(facts: Facts) -> Architecture:
    """Facts that all of them share."""
    return decoder(facts, facts.size("intermediate_size"))


def _with_attention_bias(facts: Facts) -> Architecture:
    bias = facts.flag("attention_bias")
    return replace(_rotary(facts), qkv_bias=bias, attention_output_bias=bias)


def _llama(facts: Facts) -> Architecture:
    return replace(_with_attention_bias(facts), ffn_bias=facts.flag("mlp_bias"))


def _mixtral(facts: Facts) -> Architecture:
    base = _rotary(facts)
    experts = Experts(facts.size("num_local_experts"), facts.size("num_experts_per_tok"), base.ffn_size)
    return replace(base, experts=experts, module_names=_MIXTRAL_NAMES)


def _qwen2(facts: Facts) -> Architecture:
    # This family always has a bias for query, key and value.
    return replace(_rotary(facts), qkv_bias=True)


def _qwen3(facts: Facts) -> Architecture:
    return replace(_with_attention_bias(facts), query_key_norm=True)


def _qwen2_moe(facts: Facts) -> Architecture:
    shared = facts.size("shared_expert_intermediate_size")
    experts = replace(_qwen_experts(facts), shared_ffn_size=shared, gated_shared=True)
    return replace(_rotary(facts), qkv_bias=facts.flag("qkv_bias"), experts=experts)


def _qwen3_moe(facts: Facts) -> Architecture:
    return replace(_qwen3(facts), experts=_qwen_experts(facts))


def _qwen_experts(facts: Facts) -> Experts:
    layers, step, plain = (
        facts.depth("num_hidden_layers"),
        facts.size("decoder_sparse_step"),
        facts.value("mlp_only_layers"),
    )
    if not isinstance(plain, list) or not all(isinstance(layer, int) for layer in plain):
        raise ValueError(f"{facts.path('mlp_only_layers')}: {plain!r} is not a list of layer numbers")
    with_experts = set(range(step - 1, layers, step)) - set(plain)
    return Experts(
        count=facts.size("num_experts"),
        per_token=facts.size("num_experts_per_tok"),
        ffn_size=facts.size("moe_intermediate_size"),
        dense_layers=layers - len(with_experts),
    )


def _gemma2(facts: Facts) -> Architecture:
    # A norm before and after each half of the layer.
    return replace(
        _with_attention_bias(facts),
        norms_per_layer=4,
        attention_softcap=facts.cap("attn_logit_softcapping"),
        logit_softcap=facts.cap("final_logit_softcapping"),
    )


def _gemma3(facts: Facts) -> Architecture:
    return replace(_gemma2(facts), query_key_norm=True)


def _phi3(facts: Facts) -> Architecture:
    return replace(_rotary(facts), hidden_dropout=facts.rate("resid_pdrop"), module_names=_PHI3_NAMES)


_LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
}
_MISTRAL = {**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8}
_QWEN2 = {**_LLAMA, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32}
_QWEN2_MOE = {
    **_QWEN2,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts_per_tok": 4,
    "num_experts": 60,
    "mlp_only_layers": [],
    "qkv_bias": True,
}
_QWEN3_MOE = {
    **_QWEN2_MOE,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
}
_GEMMA = {
    **_LLAMA,
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "tie_word_embeddings": True,
}
_GEMMA2 = {
    **_GEMMA,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
_SOFTCAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}

# Defaults of the family's configuration class in transformers 4.57. Version 5 writes the number of experts as
# num_local_experts for Qwen3 too, where version 4 wrote num_experts, and accepts either name for Mixtral.
FAMILIES = {
    "llama": Family(_llama, _LLAMA),
    "mistral": Family(_rotary, _MISTRAL),
    "mixtral": Family(
        _mixtral, {**_MISTRAL, "num_experts_per_tok": 2, "num_local_experts": 8}, {"num_experts": "num_local_experts"}
    ),
    "qwen2": Family(_qwen2, _QWEN2),
    "qwen2_moe": Family(_qwen2_moe, _QWEN2_MOE),
    "qwen3": Family(_qwen3, {**_QWEN2, "head_dim": 128}),
    "qwen3_moe": Family(_qwen3_moe, _QWEN3_MOE, {"num_local_experts": "num_experts"}),
    "gemma": Family(_with_attention_bias, _GEMMA),
    "gemma2": Family(_gemma2, {**_GEMMA2, **_SOFTCAPS}),
    "gemma3_text": Family(_gemma3, {**_GEMMA2, "vocab_size": 262208}),
    "phi3": Family(
        _phi3, {**_LLAMA, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "resid_pdrop": 0.0}
    ),
}
