"""Predicted throughput: published rows lie in the interval, and each knob changes it in the right direction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memtune.gpus.gpu import find
from memtune.memory.formulas.shape import shape_of
from memtune.memory.prediction import Interval
from memtune.memory.predictor import Predictor
from memtune.memory.speed import compute_seconds
from memtune.memory.workload import Workload
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.plans.plan import Plan

LLAMA_3_8B = Architecture("llama-3-8b", Kind.DECODER, 4096, 32, 32, 8, 128, 14336, 128256)
LLAMA_2_7B = Architecture("llama-2-7b", Kind.DECODER, 4096, 32, 32, 32, 128, 11008, 32000)
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def mpt(hidden: int, layers: int, heads: int) -> Architecture:
    return Architecture(
        "mpt", Kind.DECODER, hidden, layers, heads, heads, hidden // heads, 4 * hidden, 50368,
        gated_ffn=False, rms_norm=False, tied_embeddings=True, position_count=2048,
        qkv_bias=True, attention_output_bias=True, ffn_bias=True,
    )  # fmt: skip


MPT_1B, MPT_7B, MPT_13B = mpt(2048, 24, 16), mpt(4096, 32, 32), mpt(5120, 40, 40)


def tokens_per_second(
    architecture: Architecture, gpu: str, gpus: int, sequence: int, plan: str, **more: object
) -> Interval:
    parsed, per_node = Plan.parse(plan), min(gpus, 8)
    workload = Workload(
        architecture, find(gpu), parsed.global_batch(gpus), sequence, nodes=gpus // per_node, gpus_per_node=per_node
    )
    return Predictor(replace(workload, **more)).predict(parsed).tokens_per_second  # type: ignore[arg-type]


# mosaicml/llm-foundry scripts/train/benchmarking/README.md, pytorch/torchtitan benchmarks/ (llama3_h100_202412, the
# H200 report of 2025-06) and KempnerInstitute/KempnerForge benchmarks/mfu_scaling; bench/data has all rows.
@pytest.mark.parametrize(
    ("architecture", "gpu", "gpus", "sequence", "plan", "compiled", "published"),
    [
        (MPT_1B, "a100-80gb", 8, 2048, "bf16-fsdp-none-mb14x4", False, 164_109),
        (MPT_7B, "a100-80gb", 8, 2048, "bf16-fsdp-none-mb6x2", False, 37_130),
        (MPT_7B, "a100-40gb", 128, 2048, "bf16-fsdp-full-mb18x1", False, 463_749),
        (MPT_7B, "h100-80gb", 8, 2048, "bf16-fsdp-none-mb6x1", False, 85_144),
        (MPT_13B, "h100-80gb", 64, 2048, "bf16-fsdp-none-mb2x1", False, 307_209),
        (LLAMA_3_8B, "h100-96gb", 8, 8192, "bf16-fsdp-sel-mb2x1", False, 46_096),
        (LLAMA_3_8B, "h100-96gb", 128, 8192, "fp8-fsdp-sel-mb2x1", True, 1_072_640),
        (LLAMA_3_8B, "h200-141gb", 32, 8192, "fp8-fsdp-sel-mb2x1", True, 350_016),
        (LLAMA_3_8B, "h200-141gb", 4, 4096, "bf16-fsdp-full-mb4x2", True, 38_983),
    ],
)
def test_published_throughputs_lie_in_the_interval(
    architecture: Architecture, gpu: str, gpus: int, sequence: int, plan: str, compiled: bool, published: float
) -> None:
    predicted = tokens_per_second(architecture, gpu, gpus, sequence, plan, compiled=compiled)
    assert predicted.lower < published < predicted.upper


def test_a_second_node_costs_little_where_every_gpu_has_its_own_network() -> None:
    # 4,792 tokens a second and GPU on one node, 4,800 on eight: the rows of mpt-13b above.
    one = tokens_per_second(MPT_13B, "h100-80gb", 8, 2048, "bf16-fsdp-none-mb2x1").expected / 8
    eight = tokens_per_second(MPT_13B, "h100-80gb", 64, 2048, "bf16-fsdp-none-mb2x1").expected / 64
    assert eight == pytest.approx(one, rel=0.1)


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ("bf16-z2-none-mb4x1", "bf16-z2-full-mb4x1"),
        ("bf16-z2-none-mb4x1", "bf16-z3-none-mb4x1"),
        ("bf16-z2-none-mb4x1", "bf16-z2-none-mb1x4"),
        ("bf16-z2-none-mb4x1", "fp32-z2-none-mb4x1"),
        ("fp8-z2-none-mb4x1", "bf16-z2-none-mb4x1"),
        ("bf16-z2-none-mb4x1", "bf16-z2-none-mb4x1-eager"),
        ("bf16-z2-none-mb4x1", "bf16-z2-none-mb4x1-oopt"),
        ("bf16-z2-none-mb4x1", "bf16-z2-none-mb4x1-oact"),
        ("bf16-z2-none-mb4x1-sgd", "bf16-z2-none-mb4x1"),
        ("bf16-z2-none-mb4x1", "bf16-z2-none-mb4x1-muon"),
    ],
)
def test_a_knob_moves_the_speed_the_right_way(faster: str, slower: str) -> None:
    fast, slow = (tokens_per_second(MPT_7B, "h100-80gb", 8, 2048, plan) for plan in (faster, slower))
    assert fast.expected > slow.expected


def test_a_base_in_4_bits_costs_little() -> None:
    # AnswerDotAI/fsdp_qlora benchmarks_03_2024.md, two RTX 4090: 4,799 tokens a second on a base in 16 bits, and 4,660
    # with twice the micro-batch on one in 4 bits.
    plain, quantized = (
        tokens_per_second(
            LLAMA_2_7B, "rtx4090-24gb", 2, 2048, f"bf16-ddp-full-mb{rows}x1", adapter=Adapter(64, ALL_LINEAR, base)
        )
        for base, rows in (("none", 4), ("nf4", 8))
    )
    assert plain.expected / quantized.expected == pytest.approx(4799 / 4660, abs=0.05)


def seconds_of(adapter: Adapter | None, plan: str = "bf16-ddp-none-mb1x8") -> tuple[float, float]:
    workload = Workload(LLAMA_3_8B, find("a100-80gb"), 8, 8192, adapter=adapter)
    return compute_seconds(workload, shape_of(LLAMA_3_8B, adapter), Plan.parse(plan))


def test_a_frozen_base_saves_the_gradients_of_its_weights_and_nothing_of_attention() -> None:
    # 8,192 tokens times 2 FLOPs of 7.50 G weights, which leave out the embedding, at 0.869 of an A100's 312 T/s.
    frozen = seconds_of(Adapter(1, ("q_proj",)))
    assert seconds_of(None)[0] - frozen[0] == pytest.approx(8192 * 2 * 7.50e9 / (0.869 * 312e12), rel=0.01)


def test_full_checkpointing_repeats_the_layers_and_not_the_head() -> None:
    # 8,192 tokens times 2 FLOPs of 6.98 G weights, and in 32 layers 4 x 4,096 x 8,192 FLOPs at 0.62 of 312 T/s and 94
    # hidden states of 4,096 x 2 bytes at 2.039 TB/s.
    attention, traffic = 4 * 4096 * 8192 / (0.62 * 312e12), 94 * 4096 * 2 / 2.039e12
    repeated = seconds_of(None, "bf16-ddp-full-mb1x8")[0] - seconds_of(None)[0]
    assert repeated == pytest.approx(8192 * (2 * 6.98e9 / (0.869 * 312e12) + 32 * (attention + traffic)), rel=0.01)


def test_a_base_in_4_bits_is_converted_once_a_pass() -> None:
    # Two passes of 6.98 G weights in the layers: half a byte and 4 bytes for 64 of them are read, 2 bytes written, at
    # 2.039 TB/s.
    plain, quantized = (seconds_of(Adapter(1, ("q_proj",), base)) for base in ("none", "nf4"))
    assert quantized[0] == pytest.approx(plain[0])
    assert quantized[1] - plain[1] == pytest.approx(2 * 6.98e9 * (0.5 + 4 / 64 + 2) / 2.039e12, rel=0.01)


@pytest.mark.parametrize(("gpu", "microseconds"), [("a100-80gb", 33.30), ("h100-80gb", 18.61)])
def test_attention_reaches_a_share_of_the_peak_that_its_gpu_has(gpu: str, microseconds: float) -> None:
    # What 4,096 more tokens in a sequence cost each token: three passes of 4 x 4,096 x 4,096 FLOPs in 32 layers, at
    # 0.62 of 312 T/s or at 0.35 of 989 T/s.
    def per_token(length: int) -> float:
        workload = Workload(LLAMA_3_8B, find(gpu), 8, length)
        return compute_seconds(workload, shape_of(LLAMA_3_8B, None), Plan.parse("bf16-ddp-none-mb1x8"))[0] / length

    assert per_token(8192) - per_token(4096) == pytest.approx(microseconds * 1e-6, rel=0.01)


@pytest.mark.parametrize(("recomputes", "microseconds"), [(True, 1.322 + 0.613), (False, 0.0)])
def test_a_fused_loss_may_make_the_logits_a_second_time(recomputes: bool, microseconds: float) -> None:
    # H100, 8,192 tokens: 2 x 4,096 x 128,256 FLOPs at 0.803 of 989 T/s, and 16 bytes of each of 128,256 logits at
    # 3.35 TB/s.
    workload = Workload(LLAMA_3_8B, find("h100-80gb"), 8, 8192, recomputes_loss=recomputes)
    kept, fused = (
        compute_seconds(workload, shape_of(LLAMA_3_8B, None), Plan.parse(plan))[0]
        for plan in ("bf16-ddp-full-mb1x8", "bf16-ddp-full-mb1x8-fl")
    )
    assert fused - kept == pytest.approx(8192 * microseconds * 1e-6, rel=0.01)
