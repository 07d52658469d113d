"""Parameter counts of public models, against the counts that were published for them.

Sources, by the letter of a row:
K  keras-team/keras-hub@71453d08f, keras_hub/src/models/<family>/<family>_presets.py, "params"
S  the total that Hugging Face shows for the safetensors files of the repository named in the row
C  the model card on Hugging Face of the repository named in the row
J  huggingface/huggingface.js, packages/hub/src/lib/parse-safetensors-metadata.spec.ts
V  pytorch/vision, torchvision/models/vision_transformer.py, "num_params"

``BUILT`` has models whose exact count nobody published: transformers 4.57.6 made them on the meta device.
"""

from __future__ import annotations

from typing import Any

import pytest

from memtune.model.architecture import Adapter
from memtune.model.count import ParameterCounts, adapter_parameters, parameters, quantizable_parameters
from memtune.model.huggingface import FAMILIES, defaulted_sizes, from_hf_config
from memtune.model.plain import from_facts

Config = dict[str, Any]


def gated(family: str, hidden: int, layers: int, heads: str, ffn: int, vocab: int, **more: Any) -> Config:
    """A config of the Llama kind; ``heads`` is query heads / key and value heads."""
    query, kv = heads.split("/")
    return {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": int(query),
        "num_key_value_heads": int(kv),
        "intermediate_size": ffn,
        "vocab_size": vocab,
        **more,
    }


def classic(family: str, hidden: int, layers: int, heads: int, **more: Any) -> Config:
    """A config of the GPT, BERT or vision kind; what is not given is the family's default."""
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"model_type": family, **sizes, **more}


def t5(hidden: int, layers: int, heads: int, head_dim: int, ffn: int, version: str = "1.0") -> Config:
    sizes = {"d_model": hidden, "num_layers": layers, "num_heads": heads, "d_kv": head_dim, "d_ff": ffn}
    gated_gelu = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    return {"model_type": "t5", **sizes, **(gated_gelu if version == "1.1" else {})}


TIED = {"tie_word_embeddings": True}


def gemma3(text: Config) -> Config:
    """A config.json as Google publishes it: what are transformers' defaults is left out."""
    sizes = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
    vision = {"model_type": "siglip_vision_model", **sizes, "image_size": 896, "patch_size": 14}
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": {"model_type": "gemma3_text", "sliding_window": 1024, **text},
        "vision_config": {**vision, "vision_use_head": False},
    }


GEMMA3_4B = gemma3({"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34})
GEMMA3_12B = gemma3(
    {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    }
)
GEMMA3_27B = gemma3(
    {
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
    }
)
IMAGENET = {"architectures": ["ViTForImageClassification"], "num_labels": 1000}
LLAMA_2_7B = gated("llama", 4096, 32, "32/32", 11008, 32000)
MIXTRAL_8X7B = gated("mixtral", 4096, 32, "32/8", 14336, 32000, num_local_experts=8, num_experts_per_tok=2)
QWEN3_30B_EXPERTS = {"head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
OPT_350M_SHAPE = {"ffn_dim": 4096, "word_embed_proj_dim": 512, "do_layer_norm_before": False}
FALCON_RW_SHAPE = {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True, "vocab_size": 50304}
FALCON_40B_SHAPE = {"new_decoder_architecture": True, "num_kv_heads": 8}
FLAN_T5_XXL = t5(4096, 24, 64, 64, 10240, "1.1")
VIT_BASE = classic("vit", 768, 12, 12, **IMAGENET)
VIT_LARGE = classic("vit", 1024, 24, 16, intermediate_size=4096, **IMAGENET)
VIT_HUGE = classic("vit", 1280, 32, 16, intermediate_size=5120, patch_size=14, **IMAGENET)

PUBLISHED: list[tuple[str, str, int, Config]] = [
    ("K", "llama2_7b_en", 6_738_415_616, LLAMA_2_7B),
    ("S", "meta-llama/Llama-2-13b-hf", 13_015_864_320, gated("llama", 5120, 40, "40/40", 13824, 32000)),
    ("S", "meta-llama/Llama-2-70b-hf", 68_976_648_192, gated("llama", 8192, 80, "64/8", 28672, 32000)),
    ("K", "llama3_8b_en", 8_030_261_248, gated("llama", 4096, 32, "32/8", 14336, 128256)),
    ("S", "meta-llama/Meta-Llama-3-70B", 70_553_706_496, gated("llama", 8192, 80, "64/8", 28672, 128256)),
    ("S", "meta-llama/Llama-3.2-1B", 1_235_814_400, gated("llama", 2048, 16, "32/8", 8192, 128256, **TIED)),
    ("S", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1_100_048_384, gated("llama", 2048, 22, "32/4", 5632, 32000)),
    ("K", "mistral_7b_en", 7_241_732_096, gated("mistral", 4096, 32, "32/8", 14336, 32000)),
    ("K", "mixtral_8_7b_en", 46_702_792_704, MIXTRAL_8X7B),
    ("K", "qwen2.5_0.5b_en", 494_032_768, gated("qwen2", 896, 24, "14/2", 4864, 151936, **TIED)),
    ("S", "Qwen/Qwen2-7B", 7_615_616_512, gated("qwen2", 3584, 28, "28/4", 18944, 152064)),
    ("K", "qwen2.5_instruct_72b_en", 72_706_203_648, gated("qwen2", 8192, 80, "64/8", 29568, 152064)),
    ("K", "qwen1.5_moe_2.7b_en", 14_315_784_192, gated("qwen2_moe", 2048, 24, "16/16", 5632, 151936)),
    ("K", "qwen3_0.6b_en", 596_049_920, gated("qwen3", 1024, 28, "16/8", 3072, 151936, **TIED)),
    ("K", "qwen3_8b_en", 8_190_735_360, gated("qwen3", 4096, 36, "32/8", 12288, 151936)),
    (
        "K",
        "qwen3_moe_30b_a3b_en",
        30_532_122_624,
        gated("qwen3_moe", 2048, 48, "32/4", 6144, 151936, **QWEN3_30B_EXPERTS),
    ),
    ("K", "gemma_2b_en", 2_506_172_416, gated("gemma", 2048, 18, "8/1", 16384, 256000)),
    ("K", "gemma_7b_en", 8_537_680_896, gated("gemma", 3072, 28, "16/16", 24576, 256000)),
    ("K", "gemma2_2b_en", 2_614_341_888, gated("gemma2", 2304, 26, "8/4", 9216, 256000)),
    ("K", "gemma2_9b_en", 9_241_705_984, gated("gemma2", 3584, 42, "16/8", 14336, 256000)),
    ("K", "gemma2_27b_en", 27_227_128_320, gated("gemma2", 4608, 46, "32/16", 36864, 256000, head_dim=128)),
    ("K", "gemma3_1b", 999_885_952, gated("gemma3_text", 1152, 26, "4/1", 6912, 262144)),
    ("S", "google/gemma-3-4b-it", 4_300_079_472, GEMMA3_4B),
    ("S", "google/gemma-3-12b-it", 12_187_325_040, GEMMA3_12B),
    ("S", "google/gemma-3-27b-it", 27_432_406_640, GEMMA3_27B),
    ("S", "microsoft/phi-2", 2_779_683_840, classic("phi", 2560, 32, 32, intermediate_size=10240)),
    ("K", "phi3_mini_4k_instruct_en", 3_821_079_552, gated("phi3", 3072, 32, "32/32", 8192, 32064)),
    ("K", "gpt2_base_en", 124_439_808, {"model_type": "gpt2"}),
    ("K", "gpt2_large_en", 774_030_080, {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20}),
    ("K", "gpt2_extra_large_en", 1_557_611_200, {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25}),
    ("C", "EleutherAI/gpt-neox-20b", 20_554_567_680, classic("gpt_neox", 6144, 44, 64)),
    # KerasHub leaves out the two position rows that no token uses: 0.001% of the 125M model.
    ("K", "opt_125m_en", 125_237_760, {"model_type": "opt"}),
    ("K", "bloom_560m_multi", 559_214_592, {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "n_head": 16}),
    ("J", "bigscience/bloom", 176_247_271_424, classic("bloom", 14336, 70, 112)),
    ("K", "falcon_refinedweb_1b_en", 1_311_625_216, classic("falcon", 2048, 24, 32, **FALCON_RW_SHAPE)),
    ("K", "bert_base_en_uncased", 109_482_240, {"model_type": "bert"}),
    ("K", "bert_large_en_uncased", 335_141_888, classic("bert", 1024, 24, 16, intermediate_size=4096)),
    ("K", "distil_bert_base_en_uncased", 66_362_880, {"model_type": "distilbert"}),
    ("K", "t5_small_multi", 60_506_624, t5(512, 6, 8, 64, 2048)),
    ("K", "t5_large_multi", 737_668_096, t5(1024, 24, 16, 64, 4096)),
    ("K", "t5_1.1_base", 247_577_856, t5(768, 12, 12, 64, 2048, "1.1")),
    ("K", "t5_1.1_xxl", 11_135_332_352, FLAN_T5_XXL),
    ("V", "vit_b_16", 86_567_656, VIT_BASE),
    ("V", "vit_l_16", 304_326_632, VIT_LARGE),
    ("V", "vit_h_14", 632_045_800, VIT_HUGE),
]

BUILT: list[tuple[str, int, Config]] = [
    ("facebook/opt-350m", 331_196_416, classic("opt", 1024, 24, 16, **OPT_350M_SHAPE)),
    ("tiiuae/falcon-7b", 6_921_720_704, {"model_type": "falcon", "num_kv_heads": 71}),
    ("tiiuae/falcon-40b", 41_303_293_952, classic("falcon", 8192, 60, 128, **FALCON_40B_SHAPE)),
    (
        "FacebookAI/roberta-base",
        124_645_632,
        classic("roberta", 768, 12, 12, max_position_embeddings=514, type_vocab_size=1),
    ),
]


@pytest.mark.parametrize(("published", "config"), [row[2:] for row in PUBLISHED], ids=[row[1] for row in PUBLISHED])
def test_the_count_is_the_published_one(published: int, config: Config) -> None:
    total = parameters(from_hf_config(config)).total
    assert total == published or (config == {"model_type": "opt"} and total - published == 2 * 768)


@pytest.mark.parametrize(("name", "built", "config"), BUILT, ids=[row[0] for row in BUILT])
def test_the_count_is_that_of_the_model_as_transformers_makes_it(name: str, built: int, config: Config) -> None:
    assert parameters(from_hf_config(config)).total == built, name


def test_every_family_has_a_count_that_was_published_or_built() -> None:
    assert len(PUBLISHED) >= 40
    configs = [row[3] for row in PUBLISHED] + [row[2] for row in BUILT]
    assert {config["model_type"] for config in configs} == set(FAMILIES)


def test_components_of_llama_2_7b() -> None:
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
    assert parameters(from_hf_config(LLAMA_2_7B)) == ParameterCounts(
        embedding=32000 * 4096,
        layer=layer,
        layers=32,
        encoder_layer=0,
        encoder_layers=0,
        final=4096,
        head=32000 * 4096,
        active_layer=layer,
    )


def test_a_tied_head_costs_nothing() -> None:
    assert parameters(from_hf_config({"model_type": "gpt2"})).head == 0


def test_a_token_visits_two_of_eight_experts() -> None:
    # 12.9B active: Jiang et al., Mixtral of Experts, arXiv 2401.04088.
    counts = parameters(from_hf_config(MIXTRAL_8X7B))
    assert counts.layer - counts.active_layer == 6 * 3 * 4096 * 14336
    assert counts.active == pytest.approx(12.9e9, rel=0.002)


def test_layers_without_experts_are_counted_with_their_own_size() -> None:
    config = gated("qwen3_moe", 2048, 48, "32/4", 6144, 151936, **QWEN3_30B_EXPERTS)
    mixed = parameters(from_hf_config({**config, "mlp_only_layers": [0, 1]}))
    assert (mixed.layers, mixed.dense_layers) == (48, 2)
    assert mixed.layer - mixed.dense_layer == 128 * 3 * 2048 * 768 + 128 * 2048 - 3 * 2048 * 6144
    assert mixed.total == parameters(from_hf_config(config)).total - 2 * (mixed.layer - mixed.dense_layer)
    every_second = parameters(from_hf_config({**config, "decoder_sparse_step": 2}))
    assert every_second.dense_layers == 24


@pytest.mark.parametrize("model_type", ["qwen3_moe", "mixtral"])
@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_experts_are_counted_by_either_name_that_transformers_gives_them(model_type: str, name: str) -> None:
    # transformers 5 writes num_local_experts for what 4 wrote as num_experts (configuration_qwen3_moe.py).
    architecture = from_hf_config({"model_type": model_type, name: 16})
    assert architecture.experts
    assert architecture.experts.count == 16


def test_missing_sizes_are_reported_with_those_of_experts() -> None:
    sizes = gated("qwen3_moe", 2048, 48, "32/4", 6144, 151936)
    assert defaulted_sizes(sizes) == {"num_experts": 128, "moe_intermediate_size": 768}
    assert defaulted_sizes({**sizes, **QWEN3_30B_EXPERTS}) == {}


def test_an_encoder_decoder_has_cross_attention_in_its_decoder_only() -> None:
    counts = parameters(from_hf_config(t5(512, 6, 8, 64, 2048)))
    assert counts.layer - counts.encoder_layer == 4 * 512 * 512 + 512


@pytest.mark.parametrize(
    ("name", "difference"),
    [
        # Against the bare model with its pooler (768 x 768 + 768).
        ("BertModel", 0),
        ("BertForSequenceClassification", 2 * 768 + 2),
        ("BertForTokenClassification", 2 * 768 + 2 - 590_592),
        # Its dense layer and norm, and a bias per word; the output matrix is the embedding.
        ("BertForMaskedLM", 590_592 + 2 * 768 + 30_522 - 590_592),
    ],
)
def test_the_class_in_the_config_decides_the_head(name: str, difference: int) -> None:
    counts = parameters(from_hf_config({"model_type": "bert", "architectures": [name]}))
    assert counts.total == 109_482_240 + difference


def test_plain_facts_count_like_the_config() -> None:
    facts = {"hiddenSize": 4096, "layers": 32, "heads": 32, "kvHeads": 8, "ffnSize": 14336, "vocabSize": 32000}
    experts = {"count": 8, "perToken": 2, "ffnSize": 14336}
    assert parameters(from_facts(facts)).total == 7_241_732_096
    assert parameters(from_facts({**facts, "experts": experts})) == parameters(from_hf_config(MIXTRAL_8X7B))


def test_plain_facts_of_gpt2() -> None:
    bias = {"qkvBias": True, "attentionOutputBias": True, "ffnBias": True}
    shape = {"gatedFfn": False, "norm": "layernorm", "tiedEmbeddings": True, "positionCount": 1024}
    sizes = {"hiddenSize": 768, "layers": 12, "heads": 12, "ffnSize": 3072, "vocabSize": 50257}
    assert parameters(from_facts({**sizes, **shape, **bias})).total == 124_439_808


ADAPTERS: list[tuple[str, int, Config, int, tuple[str, ...]]] = [
    ("what peft prints for Llama 7B: of 6,742,609,920", 4_194_304, LLAMA_2_7B, 8, ("q_proj", "v_proj")),
    ("made by peft 0.21.2", 8_388_608, LLAMA_2_7B, 16, ("q_proj", "v_proj")),
    ("made by peft 0.21.2", 16_777_216, LLAMA_2_7B, 16, ("q_proj", "k_proj", "v_proj", "o_proj")),
    ("made by peft 0.21.2", 39_976_960, LLAMA_2_7B, 16, ("all-linear",)),
    ("made by peft 0.21.2", 294_912, {"model_type": "gpt2"}, 8, ("c_attn",)),
    ("philschmid/flan-t5-xxl, fine-tuned with LoRA (blog post)", 18_874_368, FLAN_T5_XXL, 16, ("q", "v")),
]


@pytest.mark.parametrize(("source", "trainable", "config", "rank", "targets"), ADAPTERS)
def test_adapters_train_the_published_number_of_parameters(
    source: str, trainable: int, config: Config, rank: int, targets: tuple[str, ...]
) -> None:
    assert adapter_parameters(from_hf_config(config), Adapter(rank, targets)) == trainable, source


def test_one_target_name_can_mean_several_modules() -> None:
    # c_proj is both the output of the attention and that of the feed-forward.
    gpt2 = from_hf_config({"model_type": "gpt2"})
    assert adapter_parameters(gpt2, Adapter(1, ("c_proj",))) == 12 * ((768 + 768) + (3072 + 768))
    assert adapter_parameters(gpt2, Adapter(1, ("attn.c_proj",))) == 12 * (768 + 768)


def test_every_expert_has_its_own_adapter() -> None:
    mixtral = from_hf_config(MIXTRAL_8X7B)
    assert adapter_parameters(mixtral, Adapter(4, ("w1",))) == 32 * 8 * 4 * (4096 + 14336)


def test_only_the_matrices_of_linear_modules_are_quantized() -> None:
    llama = from_hf_config(LLAMA_2_7B)
    assert quantizable_parameters(llama) == 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    # T5 keeps the output of its feed-forward in fp32.
    kept = 48 * 4096 * 10240
    whole = 24 * (4 + 8) * 4096 * 4096 + 48 * 3 * 4096 * 10240
    assert quantizable_parameters(from_hf_config(FLAN_T5_XXL)) == whole - kept
