"""BERT-like encoders, the vision transformer, and T5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memtune.model.architecture import Architecture, Head, Image, Kind, ModuleNames
from memtune.model.facts import Facts
from memtune.model.families.family import (
    ENCODER_HEADS,
    PER_TOKEN_CLASSIFIERS,
    Family,
    activation_tensors,
    class_end,
    head,
    head_dim,
    labels,
)

_BERT_NAMES = ModuleNames(
    query="self.query",
    key="self.key",
    value="self.value",
    output="output.dense",
    up="intermediate.dense",
    down="output.dense",
    attention="attention",
    ffn="",
)
_ROBERTA_NAMES = replace(_BERT_NAMES, transform="lm_head.dense")
_DISTILBERT_NAMES = ModuleNames(
    query="q_lin",
    key="k_lin",
    value="v_lin",
    output="out_lin",
    up="lin1",
    down="lin2",
    attention="attention",
    ffn="ffn",
    pooler="pre_classifier",
    transform="vocab_transform",
)
_VIT_NAMES = replace(_BERT_NAMES, query="attention.query", key="attention.key", value="attention.value")
_T5_NAMES = ModuleNames(
    query="q",
    key="k",
    value="v",
    output="o",
    gate="wi_0",
    up="wi_1",
    down="wo",
    attention="SelfAttention",
    cross_attention="EncDecAttention",
    ffn="DenseReluDense",
)


_VIT_HEADS = {"ForImageClassification": Head.CLASSIFIER, "Model": Head.NONE}
_T5_HEADS = {
    "ForConditionalGeneration": Head.LANGUAGE_MODEL,
    "WithLMHeadModel": Head.LANGUAGE_MODEL,
    "Model": Head.NONE,
}


def biased(facts: Facts, kind: Kind, heads: Mapping[str, Head], names: ModuleNames) -> Architecture:
    """Facts that BERT and vision transformers share: LayerNorm, biases, a plain feed-forward."""
    found_head = head(facts, heads, Head.NONE)
    return Architecture(
        name=facts.text("model_type"),
        kind=kind,
        hidden_size=facts.size("hidden_size"),
        layers=facts.depth("num_hidden_layers"),
        heads=facts.size("num_attention_heads"),
        kv_heads=facts.size("num_attention_heads"),
        head_dim=head_dim(facts),
        ffn_size=facts.size("intermediate_size"),
        vocab_size=0 if kind is Kind.VISION else facts.size("vocab_size"),
        gated_ffn=False,
        rms_norm=False,
        hidden_dropout=facts.rate("hidden_dropout_prob"),
        attention_dropout=facts.rate("attention_probs_dropout_prob"),
        qkv_bias=True,
        attention_output_bias=True,
        ffn_bias=True,
        head=found_head,
        head_bias=found_head is not Head.NONE,
        label_count=labels(facts) if found_head is Head.CLASSIFIER else 0,
        module_names=names,
    )


def _text(facts: Facts, names: ModuleNames) -> Architecture:
    return replace(
        biased(facts, Kind.ENCODER, ENCODER_HEADS, names),
        tied_embeddings=facts.flag("tie_word_embeddings"),
        position_count=facts.size("max_position_embeddings"),
        embedding_norm=True,
        final_norm=False,
        upcasts_loss=False,  # torch's CrossEntropyLoss in its own forward, as in T5's
        upcasts_scores=False,  # nor does the softmax of eager_attention_forward, as in T5, GPT-2 and Falcon
    )


def _bert(facts: Facts) -> Architecture:
    return _with_pooler(facts, _text(facts, _BERT_NAMES))


def _roberta(facts: Facts) -> Architecture:
    # Its classification head has a dense layer of the pooler's shape instead of the pooler.
    return _with_pooler(facts, _text(facts, _ROBERTA_NAMES))


def _with_pooler(facts: Facts, base: Architecture) -> Architecture:
    each_token = class_end(facts) in ("ForMaskedLM", *PER_TOKEN_CLASSIFIERS)
    return replace(
        base,
        token_type_count=facts.size("type_vocab_size"),
        pooler=not each_token,
        # transformers leaves the whole masked-language head unquantized.
        unquantized=(base.module_names.transform,),
    )


def _distilbert(facts: Facts) -> Architecture:
    base = _text(facts, _DISTILBERT_NAMES)
    return replace(base, pooler=class_end(facts) == "ForSequenceClassification")


def _vit(facts: Facts) -> Architecture:
    base = biased(facts, Kind.VISION, _VIT_HEADS, _VIT_NAMES)
    image = Image(facts.size("image_size"), facts.size("patch_size"), facts.size("num_channels"))
    return replace(base, image=image, qkv_bias=facts.flag("qkv_bias"), pooler=base.head is Head.NONE)


def _t5(facts: Facts) -> Architecture:
    feed_forward = facts.text("feed_forward_proj")
    gated = feed_forward.startswith("gated-")
    layers = facts.depth("num_hidden_layers")
    return Architecture(
        name=facts.text("model_type"),
        kind=Kind.ENCODER_DECODER,
        hidden_size=facts.size("hidden_size"),
        layers=facts.over({"num_decoder_layers": layers}).depth("num_decoder_layers"),
        heads=facts.size("num_attention_heads"),
        kv_heads=facts.size("num_attention_heads"),
        head_dim=facts.size("head_dim"),
        ffn_size=facts.size("d_ff"),
        vocab_size=facts.size("vocab_size"),
        gated_ffn=gated,
        tied_embeddings=facts.flag("tie_word_embeddings"),
        encoder_layers=layers,
        hidden_dropout=facts.rate("dropout_rate"),
        attention_dropout=facts.rate("dropout_rate"),
        ffn_dropout=facts.rate("dropout_rate"),
        relative_position_buckets=facts.size("relative_attention_num_buckets"),
        head=head(facts, _T5_HEADS, Head.LANGUAGE_MODEL),
        upcasts_loss=False,
        upcasts_scores=False,
        # transformers keeps this module in fp32 under every dtype of the model.
        unquantized=("wo",),
        module_names=_T5_NAMES if gated else replace(_T5_NAMES, up="wi"),
        # Its gated GELU is written out (configuration_t5.py); for a ReLU the dropped copy is kept too.
        activation_tensors=activation_tensors("gelu_new") if feed_forward == "gated-gelu" else 2,
    )


_BERT = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "tie_word_embeddings": True,
}

# Defaults of the family's configuration class in transformers 4.57.
FAMILIES = {
    "bert": Family(_bert, _BERT),
    "roberta": Family(_roberta, {**_BERT, "vocab_size": 50265}),
    "distilbert": Family(
        _distilbert,
        {**_BERT, "num_hidden_layers": 6},
        {
            "dim": "hidden_size",
            "n_layers": "num_hidden_layers",
            "n_heads": "num_attention_heads",
            "hidden_dim": "intermediate_size",
            "dropout": "hidden_dropout_prob",
            "attention_dropout": "attention_probs_dropout_prob",
        },
    ),
    "vit": Family(
        _vit,
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "image_size": 224,
            "patch_size": 16,
            "num_channels": 3,
            "qkv_bias": True,
        },
    ),
    "t5": Family(
        _t5,
        {
            "vocab_size": 32128,
            "hidden_size": 512,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "head_dim": 64,
            "d_ff": 2048,
            "relative_attention_num_buckets": 32,
            "dropout_rate": 0.1,
            "feed_forward_proj": "relu",
            "tie_word_embeddings": True,
        },
        {
            "d_model": "hidden_size",
            "num_layers": "num_hidden_layers",
            "num_heads": "num_attention_heads",
            "d_kv": "head_dim",
        },
    ),
}
