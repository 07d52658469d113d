"""GPT-like decoders: LayerNorm and a plain feed-forward; learned or rotary positions, or ALiBi."""

from __future__ import annotations

from dataclasses import replace

from memtune.model.architecture import Architecture, Head, ModuleNames
from memtune.model.facts import Facts
from memtune.model.families.family import Family, activation_tensors, decoder

_GPT2_NAMES = ModuleNames(
    query="c_attn", key="c_attn", value="c_attn", output="c_proj", up="c_fc", down="c_proj", attention="attn"
)
_PHI_NAMES = ModuleNames(output="dense", up="fc1", down="fc2")
_OPT_NAMES = ModuleNames(output="out_proj", up="fc1", down="fc2", ffn="")
_FUSED_NAMES = ModuleNames(
    query="query_key_value",
    key="query_key_value",
    value="query_key_value",
    output="dense",
    up="dense_h_to_4h",
    down="dense_4h_to_h",
    attention="self_attention",
)
_NEOX_NAMES = replace(_FUSED_NAMES, attention="attention")


def _plain(facts: Facts, ffn_size: int, names: ModuleNames) -> Architecture:
    """Facts that all of them share; with biases everywhere, as in most of them."""
    return decoder(
        facts,
        ffn_size,
        gated_ffn=False,
        rms_norm=False,
        hidden_dropout=facts.rate("hidden_dropout"),
        qkv_bias=True,
        attention_output_bias=True,
        ffn_bias=True,
        module_names=names,
        activation_tensors=activation_tensors(facts.text("hidden_act")),
    )


def _gpt2(facts: Facts) -> Architecture:
    base = _plain(facts, facts.size_or("n_inner", 4 * facts.size("hidden_size")), _GPT2_NAMES)
    return replace(base, position_count=facts.size("max_position_embeddings"), upcasts_scores=False)


def _gpt_neox(facts: Facts) -> Architecture:
    bias = facts.flag("attention_bias")
    base = _plain(facts, facts.size("intermediate_size"), _NEOX_NAMES)
    return replace(base, qkv_bias=bias, attention_output_bias=bias)


def _phi(facts: Facts) -> Architecture:
    base = _plain(facts, facts.size("intermediate_size"), _PHI_NAMES)
    # A single norm feeds both attention and feed-forward.
    return replace(
        base,
        norms_per_layer=1,
        query_key_norm=facts.flag("qk_layernorm"),
        head_bias=base.head_bias or base.head is Head.LANGUAGE_MODEL,
    )


_OPT_POSITION_OFFSET = 2  # OPTLearnedPositionalEmbedding has two rows that no token uses


def _opt(facts: Facts) -> Architecture:
    base = _plain(facts, facts.size("ffn_dim"), _OPT_NAMES)
    bias = facts.flag("enable_bias")
    return replace(
        base,
        qkv_bias=bias,
        attention_output_bias=bias,
        ffn_bias=bias,
        position_count=facts.size("max_position_embeddings") + _OPT_POSITION_OFFSET,
        embedding_size=facts.size_or("word_embed_proj_dim", base.hidden_size),
        final_norm=facts.flag("do_layer_norm_before") and not facts.flag("_remove_final_layer_norm"),
    )


def _bloom(facts: Facts) -> Architecture:
    return replace(_plain(facts, 4 * facts.size("hidden_size"), _FUSED_NAMES), embedding_norm=True, makes_scores=True)


def _falcon(facts: Facts) -> Architecture:
    base = _plain(facts, facts.size_or("ffn_hidden_size", 4 * facts.size("hidden_size")), _FUSED_NAMES)
    bias, regrouped = facts.flag("bias"), facts.flag("new_decoder_architecture")
    grouped = facts.size_or("num_kv_heads", base.heads) if regrouped else base.heads
    parallel_norms = facts.size_or("num_ln_in_parallel_attn", 2 if regrouped else 1)
    return replace(
        base,
        kv_heads=1 if facts.flag("multi_query") and not regrouped else grouped,
        qkv_bias=bias,
        attention_output_bias=bias,
        ffn_bias=bias,
        norms_per_layer=parallel_norms if facts.flag("parallel_attn") else 2,
        upcasts_scores=False,
    )


_GPT2_ALIASES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "resid_pdrop": "hidden_dropout",
    "attn_pdrop": "attention_dropout",
    "activation_function": "hidden_act",
}
_BLOOM_ALIASES = {"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}

# Defaults of the family's configuration class in transformers 4.57.
FAMILIES = {
    "gpt2": Family(
        _gpt2,
        {
            "hidden_act": "gelu_new",
            "vocab_size": 50257,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 1024,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
            "tie_word_embeddings": True,
        },
        _GPT2_ALIASES,
    ),
    "gpt_neox": Family(
        _gpt_neox,
        {
            "hidden_act": "gelu",
            "vocab_size": 50432,
            "hidden_size": 6144,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "intermediate_size": 24576,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "phi": Family(
        _phi,
        {
            "hidden_act": "gelu_new",
            "vocab_size": 51200,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "intermediate_size": 8192,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "qk_layernorm": False,
            "tie_word_embeddings": False,
        },
        {"resid_pdrop": "hidden_dropout"},
    ),
    "opt": Family(
        _opt,
        {
            "hidden_act": "relu",
            "vocab_size": 50272,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "ffn_dim": 3072,
            "max_position_embeddings": 2048,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.0,
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "enable_bias": True,
            "tie_word_embeddings": True,
        },
        {"dropout": "hidden_dropout", "activation_function": "hidden_act"},
    ),
    "bloom": Family(
        _bloom,
        {
            "hidden_act": "gelu",
            "vocab_size": 250880,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 8,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
        },
        _BLOOM_ALIASES,
    ),
    "falcon": Family(
        _falcon,
        {
            "hidden_act": "gelu",
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
            "bias": False,
            "tie_word_embeddings": True,
        },
        {"n_embed": "hidden_size"},
    ),
}
