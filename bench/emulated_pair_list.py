"""The two hundred pairs of a model and a plan for bench/emulated_pairs.py, and their predictions.

Imports torch only to trace a model that has no formulas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from memtune.gpus.gpu import find
from memtune.memory.constants import DEFAULT_CONSTANTS
from memtune.memory.prediction import Belief, Prediction
from memtune.memory.predictor import Calibration, Predictor
from memtune.memory.replay import numerics_of
from memtune.memory.traced_model import TracedModel
from memtune.memory.workload import Workload
from memtune.model.architecture import Adapter
from memtune.model.huggingface import from_hf_config
from memtune.plans.plan import Plan

GPU = "h100-80gb"
GPUS_PER_NODE = 8
PICTURE = 256
UNET_WIDTH = 64


@dataclass(frozen=True)
class Model:
    """A model, made by transformers from ``config``, or without one bench/truth_models.py's U-Net.

    ``plans`` has the plans for each number of ranks.
    """

    family: str
    length: int
    plans: Mapping[int, str]
    config: Mapping[str, Any] = field(default_factory=dict)
    task: str = "CausalLM"
    adapter: Adapter | None = None

    @property
    def hf_config(self) -> dict[str, Any]:
        """The content of its config.json."""
        return {"architectures": [self.config["architecture"]], **self.config}


class Pair(NamedTuple):
    """A model under a plan, on rank 0 of ``ranks``."""

    model: str
    plan: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.model}, {self.plan}, rank 0 of {self.ranks}"


def _facts(model_type: str, architecture: str, **facts: Any) -> dict[str, Any]:
    return {"model_type": model_type, "architecture": architecture, **facts}


def _llama(hidden: int, ffn: int, layers: int, heads: int, groups: int, vocabulary: int) -> dict[str, Any]:
    return _facts(
        "llama", "LlamaForCausalLM", hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=groups, vocab_size=vocabulary, max_position_embeddings=8192,
        tie_word_embeddings=False,
    )  # fmt: skip


_LLAMA_1B = _llama(2048, 5632, 22, 32, 4, 32_000)
_LLAMA_3B = _llama(3072, 8192, 28, 24, 8, 128_256)
_LLAMA_8B = _llama(4096, 14_336, 32, 32, 8, 128_256)
_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}

MODELS: Mapping[str, Model] = {
    "llama-1.1b": Model("decoder", 2048, {
        1: "bf16-ddp-none-mb1x1 bf16-ddp-sel-mb2x2 bf16-z2-full-mb4x1 bf16-fsdp-full-mb8x1-exp fp32-ddp-full-mb2x1 "
           "fp16-ddp-every2-mb2x2",
        2: "bf16-ddp-none-mb2x2 bf16-z1-none-mb2x1 fp16-z2-sel-mb2x2 bf16-fsdpsgo-none-mb2x1 bf16-fsdp-full-mb4x2-exp",
        8: "bf16-z0-none-mb2x1 bf16-z1-full-mb8x2 bf16-z2-none-mb4x1 bf16-z3-none-mb4x1 bf16-fsdp-none-mb4x1 "
           "tf32-fsdp-none-mb2x1 bf16-z2-none-mb4x2-oopt bf16-fsdp-full-mb4x1-oparam bf16-ddp-none-mb2x1-oact",
        64: "bf16-z3-sel-mb4x1 bf16-fsdphyb-none-mb4x1 bf16-z1-none-mb4x2-g32 bf16-fsdp-every2-mb8x1",
    }, _LLAMA_1B),
    "qwen2-0.5b": Model("decoder", 2048, {
        1: "bf16-ddp-none-mb2x1 bf16-ddp-full-mb8x1 fp32-ddp-none-mb1x2 bf16-z2-none-mb2x2 "
           "bf16-ddp-none-mb2x1-adamw8bit bf16-ddp-none-mb2x1-lion",
        2: "bf16-fsdp-none-mb4x1 bf16-z3-full-mb4x1 bf16-ddp-none-mb4x1-foreach",
        8: "bf16-z2-sel-mb8x1 bf16-z3-none-mb2x1-oparam bf16-fsdpsgo-none-mb4x1 fp16-z1-none-mb4x1",
        64: "bf16-fsdp-full-mb16x1 bf16-z3-none-mb4x2",
    }, _facts("qwen2", "Qwen2ForCausalLM", hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
              num_attention_heads=14, num_key_value_heads=2, vocab_size=151_936, tie_word_embeddings=True)),
    "gpt2-medium": Model("decoder", 1024, {
        1: "bf16-ddp-none-mb8x1 fp32-ddp-none-mb4x1 bf16-ddp-full-mb16x2 bf16-z2-none-mb8x1 bf16-ddp-none-mb4x1-eager",
        8: "bf16-z1-sel-mb16x1 bf16-fsdp-none-mb16x1 bf16-z3-full-mb16x1 fp16-ddp-none-mb8x2",
        64: "bf16-fsdphyb-full-mb16x1 bf16-z2-none-mb8x2",
    }, _facts("gpt2", "GPT2LMHeadModel", n_embd=1024, n_layer=24, n_head=16, n_positions=1024, vocab_size=50_257)),
    "gemma2-2b": Model("decoder", 2048, {
        1: "bf16-ddp-full-mb1x1 bf16-z2-full-mb2x2",
        8: "bf16-z3-none-mb1x1 bf16-fsdp-full-mb4x1 bf16-z2-sel-mb1x2",
        64: "bf16-fsdp-none-mb1x1",
    }, _facts("gemma2", "Gemma2ForCausalLM", hidden_size=2304, intermediate_size=9216, num_hidden_layers=26,
              num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=256_000)),
    # Short sequences, so that not the loss peaks but the backward pass or the step.
    "llama-3b-tied": Model("decoder", 256, {
        1: "bf16-ddp-full-mb1x1 bf16-ddp-full-mb1x2",
        2: "bf16-z3-full-mb1x1",
        8: "bf16-z3-full-mb1x1 bf16-z3-full-mb1x2 bf16-z3-none-mb1x1 bf16-z3-full-mb1x1-bk100000000 bf16-z3-full-mb8x1 "
           "bf16-z2-full-mb1x1 bf16-z1-full-mb1x1 bf16-ddp-full-mb1x1 bf16-fsdp-full-mb1x1 bf16-fsdp-full-mb1x2",
    }, {**_LLAMA_3B, "tie_word_embeddings": True}),
    "llama-3b": Model("decoder", 256, {
        8: "bf16-z3-full-mb1x1 bf16-z3-full-mb1x2 bf16-z3-none-mb1x1 bf16-z3-full-mb1x1-bk100000000 bf16-z3-full-mb8x1 "
           "bf16-z2-full-mb1x1",
    }, _LLAMA_3B),
    "llama-8b": Model("decoder", 4096, {
        1: "bf16-z3-full-mb1x1 bf16-ddp-full-mb1x1",
        8: "bf16-z1-none-mb1x1 bf16-z2-none-mb1x1 bf16-z2-full-mb4x1 bf16-z3-none-mb1x1 bf16-z3-full-mb4x2 "
           "bf16-fsdp-none-mb1x1 bf16-fsdp-full-mb4x1 bf16-fsdp-sel-mb2x1-exp bf16-fsdpsgo-full-mb2x1 "
           "fp16-fsdp-full-mb4x1 bf16-z3-sel-mb2x1-bk100000000 bf16-fsdp-none-mb1x1-g32",
        64: "bf16-z1-full-mb4x1 bf16-z2-none-mb1x2 bf16-z3-none-mb2x1 bf16-fsdp-none-mb2x1 bf16-fsdphyb-full-mb4x1 "
            "fp32-fsdp-full-mb1x1 bf16-fsdp-full-mb4x1-oact",
    }, _LLAMA_8B),
    "llama-70b": Model("decoder", 4096, {
        64: "bf16-z3-full-mb1x1 bf16-fsdp-full-mb1x1 bf16-fsdp-full-mb2x2 bf16-z3-full-mb2x1-exp bf16-fsdp-none-mb1x1 "
            "bf16-fsdp-sel-mb1x1",
    }, _llama(8192, 28_672, 80, 64, 8, 128_256)),
    "mixtral-0.8b": Model("mixture of experts", 2048, {
        1: "bf16-ddp-none-mb1x1 bf16-ddp-full-mb4x2 bf16-z2-none-mb2x1 fp32-ddp-full-mb1x1",
        2: "bf16-fsdp-none-mb2x1 bf16-z3-full-mb2x1",
        8: "bf16-z1-none-mb2x1 bf16-z2-full-mb4x2 bf16-fsdp-full-mb8x1 bf16-fsdpsgo-none-mb2x1 bf16-ddp-sel-mb2x1",
        64: "bf16-fsdphyb-none-mb2x1 bf16-z3-none-mb2x1 bf16-z3-full-mb4x1",
    }, _facts("mixtral", "MixtralForCausalLM", hidden_size=1024, intermediate_size=3584, num_hidden_layers=8,
              num_attention_heads=16, num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2,
              vocab_size=32_000)),
    "qwen3-moe-1b": Model("mixture of experts", 2048, {
        1: "bf16-ddp-none-mb1x1 bf16-z2-full-mb2x1 bf16-ddp-full-mb4x1",
        8: "bf16-z1-none-mb1x2 bf16-z2-none-mb2x1 bf16-z3-full-mb4x1 bf16-fsdp-none-mb2x1 bf16-fsdp-full-mb4x2",
        64: "bf16-fsdp-sel-mb2x1 bf16-z3-none-mb1x1",
    }, _facts("qwen3_moe", "Qwen3MoeForCausalLM", hidden_size=1024, intermediate_size=3072, moe_intermediate_size=384,
              num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4, head_dim=64, num_experts=64,
              num_experts_per_tok=8, vocab_size=151_936, decoder_sparse_step=1)),
    "t5-base": Model("encoder-decoder", 512, {
        1: "bf16-ddp-none-mb8x1 fp32-ddp-none-mb8x2 bf16-ddp-full-mb16x1 bf16-z2-none-mb8x1",
        2: "bf16-fsdp-none-mb8x1 bf16-z1-sel-mb8x2",
        8: "bf16-z2-none-mb16x1 bf16-z3-full-mb16x1 bf16-fsdp-full-mb16x1 bf16-fsdpsgo-none-mb8x1 fp32-fsdp-none-mb4x1",
        64: "bf16-fsdphyb-none-mb8x1 bf16-z3-none-mb8x2",
    }, _facts("t5", "T5ForConditionalGeneration", d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12,
              vocab_size=32_128, tie_word_embeddings=True, decoder_start_token_id=0, pad_token_id=0), "Seq2SeqLM"),
    "flan-t5-xl": Model("encoder-decoder", 512, {
        1: "bf16-z3-full-mb4x1",
        8: "bf16-z1-none-mb2x1 bf16-z2-full-mb8x2 bf16-z3-none-mb4x1 bf16-fsdp-none-mb4x1 bf16-fsdp-full-mb8x1",
        64: "bf16-fsdp-sel-mb4x1 bf16-z3-full-mb8x1",
    }, _facts("t5", "T5ForConditionalGeneration", d_model=2048, d_kv=64, d_ff=5120, num_layers=24, num_heads=32,
              vocab_size=32_128, tie_word_embeddings=False, feed_forward_proj="gated-gelu", decoder_start_token_id=0,
              pad_token_id=0), "Seq2SeqLM"),
    "bert-large": Model("encoder", 512, {
        1: "fp32-ddp-none-mb8x1 bf16-ddp-none-mb16x1 fp16-ddp-full-mb32x1 bf16-z2-none-mb16x1 "
           "fp32-ddp-full-mb16x2",
        2: "bf16-fsdpsgo-none-mb16x1",
        8: "bf16-fsdp-none-mb16x1 bf16-z1-sel-mb16x1 bf16-z3-full-mb32x1 bf16-z2-sel-mb16x2",
        64: "bf16-fsdp-full-mb32x2 bf16-z2-none-mb16x1",
    }, _facts("bert", "BertForMaskedLM", vocab_size=30_522, max_position_embeddings=512, tie_word_embeddings=True,
              **_LARGE), "MaskedLM"),
    "vit-base": Model("vision transformer", 197, {
        1: "bf16-ddp-none-mb64x1 fp32-ddp-none-mb32x1 bf16-ddp-full-mb128x2 bf16-z2-none-mb64x1 fp16-ddp-sel-mb64x1",
        2: "bf16-z3-none-mb64x1",
        8: "bf16-fsdp-none-mb64x1 bf16-z1-none-mb64x2 bf16-z3-full-mb128x1 tf32-fsdp-full-mb64x1 "
           "bf16-fsdpsgo-none-mb64x1",
        64: "bf16-fsdphyb-none-mb64x1 bf16-z2-full-mb128x1",
    }, _facts("vit", "ViTForImageClassification", image_size=224, patch_size=16, num_labels=1000, **_BASE),
        "ImageClassification"),
    "vit-large": Model("vision transformer", 197, {
        1: "bf16-ddp-none-mb32x1 bf16-ddp-full-mb64x1",
        2: "bf16-z2-none-mb32x1 bf16-fsdpsgo-none-mb32x1",
        8: "bf16-z2-full-mb64x1 bf16-z3-none-mb32x1 bf16-fsdp-full-mb128x1 bf16-ddp-every2-mb32x1",
        64: "bf16-fsdp-none-mb64x1 bf16-z3-sel-mb64x1",
    }, _facts("vit", "ViTForImageClassification", image_size=224, patch_size=16, num_labels=1000, **_LARGE),
        "ImageClassification"),
    "u-net": Model("u-net", 1, {
        1: "fp32-ddp-none-mb8x1 bf16-ddp-none-mb16x1 fp32-ddp-none-mb16x2 tf32-ddp-none-mb8x1",
        8: "fp32-ddp-none-mb8x1 bf16-ddp-none-mb16x2 fp32-fsdp-none-mb8x1 fp32-z0-none-mb8x1",
        64: "bf16-ddp-none-mb8x1 fp32-fsdp-none-mb16x1",
    }),
    "llama-1.1b-lora": Model("LoRA", 2048, {
        1: "bf16-ddp-none-mb2x1 bf16-ddp-full-mb8x1 bf16-z2-none-mb2x1 bf16-ddp-sel-mb4x2",
        2: "bf16-ddp-none-mb2x2 bf16-fsdp-none-mb2x1",
        8: "bf16-z3-none-mb2x1 bf16-fsdp-full-mb8x1 bf16-z1-full-mb8x1",
        64: "bf16-z3-full-mb4x1 bf16-fsdpsgo-none-mb2x1",
    }, _LLAMA_1B, adapter=Adapter(16, ("q_proj", "v_proj"))),
    "llama-8b-lora": Model("LoRA", 2048, {
        1: "bf16-ddp-full-mb4x1 bf16-ddp-none-mb1x1 bf16-z2-full-mb4x1 bf16-ddp-sel-mb1x1",
        8: "bf16-z3-full-mb4x1 bf16-fsdp-full-mb4x2 bf16-fsdp-none-mb1x1 bf16-ddp-full-mb4x1",
        64: "bf16-fsdphyb-full-mb4x1 bf16-z3-none-mb1x1",
    }, _LLAMA_8B, adapter=Adapter(16, ("all-linear",))),
    # A quarter of the layers of Qwen2 7B, for bench/emulated_lengths.py.
    "qwen2-7b-lora": Model("LoRA", 2048, {}, _facts(
        "qwen2", "Qwen2ForCausalLM", hidden_size=3584, intermediate_size=18_944, num_hidden_layers=7,
        num_attention_heads=28, num_key_value_heads=4, vocab_size=152_064, tie_word_embeddings=False,
    ), adapter=Adapter(16, ("q_proj", "v_proj"))),
    "llama-1.1b-qlora": Model("QLoRA", 2048, {
        1: "bf16-ddp-none-mb2x1 bf16-ddp-full-mb8x1 bf16-ddp-sel-mb4x2",
        8: "bf16-ddp-none-mb2x1 bf16-ddp-full-mb4x2",
    }, _LLAMA_1B, adapter=Adapter(16, ("all-linear",), "nf4")),
    "llama-8b-qlora": Model("QLoRA", 2048, {
        1: "bf16-ddp-none-mb1x1 bf16-ddp-full-mb4x1 bf16-ddp-full-mb8x2",
        8: "bf16-ddp-full-mb4x1 bf16-ddp-sel-mb1x1",
    }, _LLAMA_8B, adapter=Adapter(16, ("q_proj", "k_proj", "v_proj", "o_proj"), "nf4")),
}  # fmt: skip
PAIRS = tuple(
    Pair(name, plan, ranks)
    for name, model in MODELS.items()
    for ranks, plans in model.plans.items()
    for plan in plans.split()
)


@cache
def traced() -> TracedModel:
    """The U-Net, which has no formulas: it is predicted from its trace, as any factory's model."""
    from memtune_runner.tracing import trace

    numerics = sorted({numerics_of(Plan.parse(pair.plan)) for pair in PAIRS if pair.model == "u-net"})
    return TracedModel("u-net", trace("emulated_pair_models:unet", sequence_length=1, numerics=numerics))


@cache
def predictor(name: str, plan: Plan, ranks: int) -> Predictor:
    """The predictor for a plan of a model, with the intervals of its components: the loop of the pairs is known."""
    model = MODELS[name]
    per_node = min(ranks, GPUS_PER_NODE)
    belief = Belief.prior(replace(DEFAULT_CONSTANTS, job_width=0.0), in_transformers=bool(model.config))
    return Predictor(
        Workload(
            model=from_hf_config(model.hf_config) if model.config else traced(),
            gpu=find(GPU),
            global_batch=plan.global_batch(ranks),
            sequence_length=model.length,
            nodes=ranks // per_node,
            gpus_per_node=per_node,
            adapter=model.adapter,
            without_autocast=True,
            drops_outputs=True,
            casts_frozen=True,
            in_transformers=bool(model.config),
        ),
        Calibration(belief, None),
    )


def prediction(pair: Pair) -> Prediction:
    """The prediction for a pair."""
    plan = Plan.parse(pair.plan)
    return predictor(pair.model, plan, pair.ranks).predict(plan)
