"""Errors for a wrong description of a model."""

from __future__ import annotations

from typing import Any

import pytest

from memtune.model.architecture import Adapter
from memtune.model.count import adapter_parameters
from memtune.model.huggingface import FAMILIES, from_hf_config, misspelt
from memtune.model.plain import from_facts

PLAIN = {"hiddenSize": 64, "layers": 2, "heads": 4, "ffnSize": 128, "vocabSize": 100}


def test_an_unknown_model_type_lists_the_known_ones_and_a_remedy() -> None:
    with pytest.raises(ValueError, match="mamba") as refusal:
        from_hf_config({"model_type": "mamba"})
    message = str(refusal.value)
    assert message.startswith("hfConfig.model_type: 'mamba' is unknown; known are ")
    assert all(family in message for family in FAMILIES)
    assert "give `architecture` with its plain facts, or where they do not describe it `factory`" in message


@pytest.mark.parametrize(("written", "meant"), [("lama", "llama"), ("Qwen2", "qwen2"), ("gpt-2", "gpt2")])
def test_a_misspelt_model_type_suggests_the_right_one(written: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"{written}' is unknown; did you mean {meant}\? known are "):
        from_hf_config({"model_type": written})


def test_a_config_of_several_models_points_to_its_text_model() -> None:
    with pytest.raises(ValueError, match="give the content of its text_config"):
        from_hf_config({"model_type": "llava", "text_config": {}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], r"hfConfig: \[\] is not a mapping of facts"),
        ({}, "hfConfig.model_type is missing; known are bert, bloom"),
        ({"model_type": 7}, "hfConfig.model_type: 7 is not a text"),
        ({"model_type": "llama", "hidden_size": "big"}, "hfConfig.hidden_size: 'big' is not a whole number"),
        ({"model_type": "llama", "hidden_size": True}, "hfConfig.hidden_size: True is not a whole number"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "num_hidden_layers: 0 is not a whole number of at least 1"),
        ({"model_type": "llama", "tie_word_embeddings": "no"}, "tie_word_embeddings: 'no' is not true or false"),
        ({"model_type": "llama", "attention_dropout": 1}, "attention_dropout: 1 is not a number from 0 up to"),
        ({"model_type": "gemma2", "attn_logit_softcapping": -1}, "attn_logit_softcapping: -1 is not a number above 0"),
        ({"model_type": "llama", "num_attention_heads": 31}, "hidden_size: 4096 cannot be divided among 31"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "num_key_value_heads: 5 does not divide the 32"),
        ({"model_type": "gpt2", "n_embd": 770}, "n_embd: 770 cannot be divided among 12"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": "0"}, "mlp_only_layers: '0' is not a list of layer numbers"),
        ({"model_type": "vit", "image_size": [224, 224]}, r"image_size: \[224, 224\] is not a whole number"),
        ({"model_type": "bert", "architectures": "BertModel"}, "architectures: 'BertModel' is not a list"),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "'LMHeadModel' is a head that is not known for"),
        (
            {"model_type": "t5", "architectures": ["T5EncoderModel"]},
            "'EncoderModel' is a head that is not known",
        ),
    ],
)
def test_a_bad_config_is_refused_with_its_key(config: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf_config(config)


def test_a_default_is_named_beside_possibly_misspelt_keys() -> None:
    with pytest.raises(ValueError, match="num_key_value_heads: 32 does not divide the 28") as refusal:
        from_hf_config({"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_kv_heads": 4})
    assert str(refusal.value).endswith(
        "; num_key_value_heads is not given, and 32 is its default; "
        "num_kv_heads is unknown: did you mean num_key_value_heads?"
    )
    with pytest.raises(ValueError, match="cannot be divided among 31") as refusal:
        from_hf_config({"model_type": "llama", "num_attention_heads": 31})
    assert str(refusal.value).endswith("(num_attention_heads); hidden_size is not given, and 4096 is its default")
    with pytest.raises(ValueError, match=r"cannot be divided among 31 \(num_attention_heads\)$"):
        from_hf_config({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 31})


@pytest.mark.parametrize(
    ("config", "meant"),
    [
        ({"model_type": "llama", "num_hiden_layers": 80}, {"num_hiden_layers": "num_hidden_layers"}),
        ({"model_type": "llama", "num_hiden_layers": 80, "num_hidden_layers": 80}, {}),
        ({"model_type": "gpt2", "n_layers": 80}, {"n_layers": "n_layer"}),
        ({"model_type": "gemma3", "text_config": {"hiden_size": 8}}, {"hiden_size": "hidden_size"}),
        ({"model_type": "falcon", "num_kv_heads": 71}, {}),
        ({"model_type": "llama", "rms_norm_eps": 1e-6, "max_position_embeddings": 8, 7: 8}, {}),
    ],
)
def test_a_key_similar_to_a_missing_size_is_reported(config: dict[str, Any], meant: dict[str, str]) -> None:
    assert misspelt(config) == [f"{key} is unknown: did you mean {name}?" for key, name in meant.items()]


@pytest.mark.parametrize("model_type", sorted(set(FAMILIES) - {"gemma3"}))
def test_no_family_takes_more_layers_than_a_step_can_be_reckoned_for(model_type: str) -> None:
    # Work per layer would take all memory of an operator that serves other jobs, too.
    with pytest.raises(ValueError, match="num_hidden_layers: 1000000000 is more than any model has; give at most 10"):
        from_hf_config({"model_type": model_type, "num_hidden_layers": 10**9})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt2", "n_embd": "wide"}, "hfConfig.n_embd: 'wide' is not a whole number"),
        ({"model_type": "gpt2", "hidden_size": "wide"}, "hfConfig.hidden_size: 'wide' is not a whole number"),
        ({"model_type": "gpt2", "n_embd": 100, "n_head": 3}, r"hfConfig.n_embd: 100 cannot .* among 3 \(n_head\)"),
        ({"model_type": "t5", "num_layers": 0}, "hfConfig.num_layers: 0 is not a whole number"),
        ({"model_type": "distilbert", "dropout": 2}, "hfConfig.dropout: 2 is not a number from 0"),
    ],
)
def test_a_bad_fact_is_named_as_the_config_names_it(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hf_config(config)


def test_a_null_takes_the_default_and_a_strange_key_is_left_alone() -> None:
    config = {"model_type": "mistral", "head_dim": None, "num_key_value_heads": None, "torch_dtype": "bfloat16"}
    assert from_hf_config(config) == from_hf_config({"model_type": "mistral"})


@pytest.mark.parametrize("missing", sorted(PLAIN))
def test_a_missing_fact_is_named(missing: str) -> None:
    with pytest.raises(ValueError, match=f"architecture.{missing} is missing, and it has no default"):
        from_facts({key: value for key, value in PLAIN.items() if key != missing})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 64}, "architecture.hidden_size is unknown; allowed are .*hiddenSize"),
        ({"rmsNorm": True}, "architecture.rmsNorm is unknown; allowed are .*norm,"),
        ({"layers": 2.0}, "architecture.layers: 2.0 is not a whole number of at least 1"),
        ({"heads": 5}, "architecture.hiddenSize: 64 cannot be divided among 5"),
        ({"kvHeads": 3}, "architecture.kvHeads: 3 does not divide the 4 attention heads"),
        (
            {"kind": "diffusion"},
            "architecture.kind: 'diffusion' is not one of decoder, encoder, ",
        ),
        ({"kind": []}, r"architecture.kind: \[\] is not one of"),
        ({"norm": "batchnorm"}, "architecture.norm: 'batchnorm' is not one of rmsnorm, layernorm"),
        ({"gatedFfn": 1}, "architecture.gatedFfn: 1 is not true or false"),
        ({"hiddenDropout": 1.5}, "architecture.hiddenDropout: 1.5 is not a number from 0"),
        ({"kind": "encoder-decoder"}, "architecture.encoderLayers: 0 with kind encoder-decoder"),
        ({"encoderLayers": 2}, "architecture.encoderLayers: 2 with kind decoder"),
        ({"kind": "vision"}, "architecture.image: kind vision needs an image"),
        ({"head": "classifier"}, "architecture.labelCount: 0 with head classifier"),
        ({"experts": 8}, "architecture.experts: 8 is not a mapping"),
        ({"experts": {"count": 8}}, "architecture.experts.perToken is missing"),
        ({"experts": {"count": 2, "perToken": 3, "ffnSize": 8}}, "architecture.experts.perToken: 3 is more than the 2"),
        (
            {"experts": {"count": 2, "perToken": 1, "ffnSize": 8, "denseLayers": 2}},
            "architecture.experts.denseLayers: 2 leaves none of the 2 layers",
        ),
        (
            {"experts": {"count": 2, "perToken": 1, "size": 8}},
            "architecture.experts.size is unknown; allowed are",
        ),
    ],
)
def test_a_bad_fact_is_refused_with_its_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_facts({**PLAIN, **change})


def test_an_unknown_adapter_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'c_attn' names no linear module of decoder; use all-linear or"):
        adapter_parameters(from_facts(PLAIN), Adapter(8, ("q_proj", "c_attn")))
