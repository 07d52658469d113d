"""Every formula of the memory model with a number worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from memtune.gpus.gpu import find
from memtune.memory.calibration import Measurement, calibrate
from memtune.memory.constants import DEFAULT_CONSTANTS
from memtune.memory.formulas.activations import (
    activation_terms,
    boundary_bytes,
    final_norm_bytes,
    layer_bytes,
    selective_bytes,
)
from memtune.memory.formulas.logits_and_buffers import (
    buffer_terms,
    building_terms,
    bytes_behind,
    logit_bytes,
    step_transients,
)
from memtune.memory.formulas.recipe import SCALE_BYTES, Recipe, lower
from memtune.memory.formulas.shape import Shape, shape_of
from memtune.memory.formulas.states import state_terms
from memtune.memory.formulas.terms import BACKWARD, FIRST_LAYER, LOSS, PHASES
from memtune.memory.predictor import Calibration, Predictor
from memtune.memory.workload import Evaluation, Workload
from memtune.model.architecture import Adapter, Architecture, Head, Kind
from memtune.model.huggingface import from_hf_config
from memtune.plans.knobs import FULL, SELECTIVE, Attention
from memtune.plans.plan import Plan

H100 = find("h100-80gb")
LLAMA_2_7B = Architecture("llama-2-7b", Kind.DECODER, 4096, 32, 32, 32, 128, 11008, 32000)
GPT = Architecture("gpt", Kind.DECODER, 1024, 24, 16, 16, 64, 4096, 50257, gated_ffn=False, rms_norm=False)
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"]}
P = 6_738_415_616
_NOT_THE_MODELS = ("context", "nccl", "workspace")
CLEAN = replace(DEFAULT_CONSTANTS, activation_factor=1.0)


@pytest.mark.parametrize(("plan", "is_recomputed"), [("bf16-z2-none-mb1x8", False), ("bf16-z2-full-mb1x8", True)])
def test_only_a_plan_with_checkpointing_is_said_to_recompute(plan: str, is_recomputed: bool) -> None:
    terms = Predictor(Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8)).explain(Plan.parse(plan))
    assert any("recomputed" in f"{term.name} {term.template}" for term in terms) is is_recomputed


def _bytes(plan: str, name: str, phase: str, workload: Workload | None = None) -> float:
    predictor = Predictor(workload or Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8))
    terms = predictor.explain(Plan.parse(plan))
    return sum(term.bytes for term in terms if term.name == name and phase in term.phase_names)


@pytest.mark.parametrize(
    ("sharding", "weights", "master", "moments", "gradients"),
    [
        ("z0", 2 * P, 4 * P, 8 * P, 2 * P),
        ("z1", 2 * P, 4 * P / 8, 8 * P / 8, 2 * P / 8),
        ("z2", 2 * P, 4 * P / 8, 8 * P / 8, 2 * P / 8),
        ("z3", 2 * P / 8, 4 * P / 8, 8 * P / 8, 2 * P / 8),
        ("ddp", 4 * P, 0, 8 * P, 4 * P),
        ("fsdp", 4 * P / 8, 0, 8 * P / 8, 4 * P / 8),
    ],
)
def test_states_follow_zero(sharding: str, weights: float, master: float, moments: float, gradients: float) -> None:
    # 1910.02054, section 3: 2P + gP + 12P, divided by the ranks that share it.
    plan = f"bf16-{sharding}-full-mb1x8"
    found = [_bytes(plan, n, "step") for n in ("weights", "master weights", "optimizer states", "gradients")]
    assert found == pytest.approx([weights, master, moments, gradients])


def test_fp32_gradients() -> None:
    assert _bytes("bf16-z2-full-mb1x8-g32", "gradients", "step") == pytest.approx(4 * P / 8)
    # BF16_Optimizer (bf16_optimizer.py) sets gradients to zero where they are, until the step is over.
    assert [_bytes("bf16-z1-full-mb1x8-g32", "gradients", phase) for phase in ("init", "loss", "step")] == [
        4 * P,
        6 * P,
        6 * P,
    ]
    assert _bytes("bf16-z1-full-mb8x1-g32", "gradients", "loss") == 4 * P
    # All of them are one tensor, which is narrowed as a whole to be reduced (deepspeed engine.py, allreduce_bucket).
    assert _bytes("bf16-z1-full-mb1x8-g32", "buckets", "reduce") == 2 * P
    # The step takes the rank's part of sums as it is; plain stage 1 flattens its own gradients, and widens them.
    assert _bytes("bf16-z1-full-mb1x8-g32", "step transients", "step") == 0
    # Stage 2 does so, too, but before that it widens each gradient to 64 bits for its norm.
    assert _bytes("bf16-z2-full-mb1x8-g32", "step transients", "step") == 8 * 32000 * 4096
    assert _bytes("bf16-z1-full-mb1x8", "step transients", "step") == pytest.approx((2 + 4) * P / 8)


def test_fp32_gradients_that_are_widened_as_they_come() -> None:
    # stage_1_and_2.py, use_grad_accum_attribute: whole sums, and when they are reduced the rank's part beside them.
    for ends in ("fp16-z1-full-mb{}-g32", "bf16-z1-full-mb{}-oopt-g32"):
        once, often = ends.format("8x1"), ends.format("1x8")
        assert [_bytes(once, "gradients", phase) for phase in ("loss", "backward")] == [0, 0]
        assert _bytes(once, "gradients", "reduce") == pytest.approx(4 * P + 4 * P / 8)
        assert _bytes(often, "gradients", "loss") == 4 * P
        assert _bytes(often, "gradients", "step") == pytest.approx(4 * P / 8)
    assert _bytes("bf16-z1-full-mb1x8-oopt-g32", "step transients", "step") == 0
    # The norm of the largest gradient in 64 bits.
    assert _bytes("fp16-z1-full-mb1x8-g32", "step transients", "step") == 8 * 32000 * 4096
    # A bucket in fp32 of 500 million elements; at its end each gradient has gone into a copy that is narrowed.
    assert [_bytes("fp16-z1-full-mb8x1-g32", "buckets", phase) for phase in ("backward", "reduce")] == [2e9, 3e9]
    assert _bytes("fp16-z1-full-mb1x8-g32", "buckets", "loss") == 2e9


def test_fp32_sums_are_on_the_gpu_where_the_optimizer_is_not() -> None:
    # stage_1_and_2.py, _use_compact_grad_partition_buffer; without it gradients go to the host as they are reduced.
    assert [_bytes(f"bf16-z2-full-mb1x8-oopt{end}", "gradients", "loss") for end in ("-g32", "")] == [4 * P / 8, 0]
    assert _bytes("bf16-z3-full-mb1x8-oopt-g32", "gradients", "loss") == 0
    # temp_grad_buffer_for_gpu_offload is as large as the largest weight, here the embedding's.
    assert [_bytes(f"bf16-z{stage}-full-mb8x1-oopt", "buckets", "init") for stage in (1, 2)] == [2 * 32000 * 4096] * 2
    # Besides that and the bucket of 500 million elements, the embedding's gradient in 64 bits for its norm: in stage 2,
    # the bucket's copy of 1.0e9 bytes is free by then.
    largest = 1e9 + (2 + 8) * 32000 * 4096
    assert [_bytes(f"bf16-z{stage}-full-mb8x1-oopt", "buckets", "reduce") for stage in (1, 2)] == [largest] * 2
    # A gradient for which the bucket is too small is reduced by itself.
    alone = largest - 0.8e9 + 2 * 32000 * 4096
    assert _bytes("bf16-z2-full-mb8x1-oopt-bk100m", "buckets", "reduce") == alone
    assert _bytes("bf16-z2-full-mb8x1-oopt", "buckets", "backward") == 2e9 + 2 * 32000 * 4096


def test_stages_2_and_3_copy_gradients_for_fp32_sums() -> None:
    # Of what a rank keeps of a bucket, stage 3 makes a second copy (stage3.py, __avg_scatter_grads).
    # The embedding's gradient is not in the bucket yet.
    assert _bytes("bf16-z3-full-mb1x8-g32", "buckets", "reduce") == 2e9 + 4 * 5e8 / 8 + 2 * 32000 * 4096
    # A single rank of stage 2 flattens one slice for each weight, which is a copy.
    assert _bytes("bf16-z2-full-mb1x8-g32", "buckets", "reduce", Workload(LLAMA_2_7B, H100, 64, 4096)) == 2e9


def test_eight_bit_moments() -> None:
    # Two bytes, and two fp32 absmax per 256 parameters.
    assert _bytes("bf16-z1-full-mb1x8-adamw8bit", "optimizer states", "step") == pytest.approx(2.03125 * P / 8)


def test_hybrid_sharding_shards_within_a_node_only() -> None:
    workload = Workload(LLAMA_2_7B, H100, 64, 4096, nodes=2, gpus_per_node=8)
    assert _bytes("bf16-fsdphyb-full-mb1x4", "weights", "step", workload) == pytest.approx(4 * P / 8)
    assert _bytes("bf16-fsdp-full-mb1x4", "weights", "step", workload) == pytest.approx(4 * P / 16)


def test_accumulation_is_not_free() -> None:
    # At accumulation 1 gradients do not exist while activations peak; from 2 on they live through the whole forward.
    assert _bytes("bf16-z1-none-mb8x1", "gradients", "loss") == 0
    assert _bytes("bf16-z1-none-mb4x2", "gradients", "loss") == pytest.approx(2 * P)
    assert _bytes("bf16-z2-none-mb4x2", "gradients", "loss") == pytest.approx(2 * P / 8)
    # Stage 1 reduces when all of them are there, and has only its own for the step.
    assert _bytes("bf16-z1-none-mb8x1", "gradients", "reduce") == pytest.approx(2 * P)
    assert _bytes("bf16-z1-none-mb4x2", "gradients", "step") == pytest.approx(2 * P / 8)
    # DDP's reducer holds a second copy, at accumulation 1 already.
    assert _bytes("bf16-ddp-none-mb8x1", "buckets", "loss") == pytest.approx(4 * P)


def test_one_whole_bucket_lives_as_long_as_its_stage_needs_it() -> None:
    # 5e8 elements x 2 bytes, made by the first gradient (stage_1_and_2.py), and from init on at stage 3 (stage3.py).
    # What is in it is copied to be reduced (allreduce_bucket; reduce_scatter_coalesced), whenever it is full.
    assert [_bytes("bf16-z2-full-mb8x1", "buckets", phase) for phase in ("loss", "backward", "step")] == [0, 2e9, 0]
    assert [_bytes("bf16-z2-full-mb1x8", "buckets", phase) for phase in ("loss", "backward", "step")] == [0, 2e9, 0]
    assert [_bytes("bf16-z3-full-mb8x1", "buckets", phase) for phase in ("init", "loss", "step")] == [1e9] * 3
    assert _bytes("bf16-z3-full-mb8x1", "buckets", "reduce") == 2e9 + 2 * 32000 * 4096
    assert _bytes("bf16-z2-full-mb1x8-bk50m", "buckets", "backward") == 2e8
    # Stage 1 copies while the gradients go that wait until then, and keeps the bucket from micro-batch to micro-batch.
    assert [_bytes("bf16-z1-full-mb8x1", "buckets", phase) for phase in ("loss", "backward", "step")] == [0, 1e9, 0]
    assert [_bytes("bf16-z1-full-mb1x8", "buckets", phase) for phase in ("loss", "reduce", "step")] == [1e9, 1e9, 0]
    # It is as large for a small model, and for a single GPU.
    alone = Workload(replace(GPT, layers=1, vocab_size=1000), H100, 8, 4096)
    assert _bytes("bf16-z1-full-mb1x8", "buckets", "backward", alone) == 1e9
    # A single GPU flattens one slice without a copy; a small model fills the bucket once, when the backward pass ends.
    assert _bytes("bf16-z2-full-mb1x8", "buckets", "reduce", alone) == 1e9
    few = replace(alone, gpus_per_node=8)
    total = shape_of(alone.model, None).total
    found = [_bytes("bf16-z2-full-mb1x1", "buckets", phase, few) for phase in ("backward", "reduce")]
    assert found == [1e9, 1e9 + 2 * total]
    # Stage 0 flattens at most the gradients there are (engine.py, buffered_allreduce_fallback).
    assert [_bytes("bf16-z0-full-mb1x1", "buckets", phase, few) for phase in ("backward", "reduce")] == [0, 2 * total]


def test_stage_3_keeps_as_much_gathered_as_its_buckets_allow() -> None:
    # Every module gathers for those to come, up to two buckets; with 50 million elements there is a layer at least.
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert _bytes("bf16-z3-full-mb1x8", "gathered units", "loss") == pytest.approx(2 * 1e9)
    assert _bytes("bf16-z3-full-mb1x8-bk50m", "gathered units", "loss") == pytest.approx(2 * layer)
    assert _bytes("bf16-z3-full-mb1x8-bk1000m", "gathered units", "loss") == pytest.approx(2 * 2e9)


def test_stage_3_keeps_as_much_gathered_as_its_own_limit_allows() -> None:
    workload = Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8)
    recipe = replace(_recipe("bf16-z3-full-mb1x8-bk50m", workload), live_elements=1_000_000_000)
    terms = buffer_terms(shape_of(LLAMA_2_7B, None), recipe, CLEAN)
    # A billion parameters of 2 bytes, though two of its buckets are a tenth of that.
    assert sum(term.bytes for term in terms if term.name == "gathered units" and LOSS in term.phases) == 2e9


def _short(plan: str, name: str, phase: str, is_tied: bool) -> float:
    """Of a Llama of 3B whose layers take so little that the backward pass peaks."""
    model = Architecture("llama-3b", Kind.DECODER, 3072, 28, 24, 8, 128, 8192, 128256, tied_embeddings=is_tied)
    return _bytes(plan, name, phase, Workload(model, H100, 8, 256, gpus_per_node=8))


@pytest.mark.parametrize("is_tied", [False, True])
def test_stage_3_has_gathered_units_in_its_backward_pass(is_tied: bool) -> None:
    table, layer = 128256 * 3072, 2 * 3072 * (3072 + 1024) + 3 * 3072 * 8192 + 2 * 3072
    plan = "bf16-z3-full-mb1x1"
    assert _short(plan, "gathered units", "backward", is_tied) == 2 * 1e9
    # The embedding is prefetched whole, beyond the limit, and is alone when its gradient is ready.
    assert _short(plan, "gathered units", "first layer", is_tied) == 2 * (1e9 + table)
    assert _short(plan, "gathered units", "reduce", is_tied) == 2 * table
    # Of what is not embedded, so much is left when the fourth bucket is reduced, or the fifth, with the untied head.
    left = 28 * layer + 3072 - 4 * 5e8 if is_tied else table + 28 * layer + 3072 - 5 * 5e8
    reduced = left + 5e8 - 1e9
    if is_tied:
        # The head's gradient waits beside the bucket and its copy; when the embedding's comes, that is the larger one.
        assert _short(plan, "buckets", "backward", True) == 2 * (5e8 + 5e8 + table)
        assert _short(plan, "buckets", "first layer", True) == pytest.approx(2 * (5e8 + reduced + table))
    else:
        # The head's gradient is the first in the bucket, which is copied later.
        assert _short(plan, "buckets", "backward", False) == 2 * (5e8 + 5e8)
        assert _short(plan, "buckets", "first layer", False) == pytest.approx(2 * (5e8 + reduced))
    assert _short(plan, "buckets", "reduce", is_tied) == 2 * (5e8 + 5e8 + table)


def test_a_model_that_is_gathered_as_a_whole_has_no_copy_of_a_bucket_beside_it() -> None:
    model = Architecture("llama-8-layers", Kind.DECODER, 2048, 8, 32, 8, 64, 8192, 128256, tied_embeddings=True)
    workload, total = Workload(model, H100, 8, 256, gpus_per_node=8), shape_of(model, None).total
    found = [_bytes("bf16-z3-full-mb1x1", "gathered units", phase, workload) for phase in ("backward", "first layer")]
    assert found == [2 * total, 2 * total]
    # What was differentiated is released by the time that it is copied.
    assert _bytes("bf16-z3-full-mb1x1", "buckets", "backward", workload) == 1e9 + 2 * 128256 * 2048


def test_the_gradients_of_a_tied_head_and_its_embedding_are_added() -> None:
    table, layer = 128256 * 3072, 2 * 3072 * (3072 + 1024) + 3 * 3072 * 8192 + 2 * 3072
    total = 28 * layer + 3072 + table
    # Torch's gradient of a head is a view, so that both and their sum are three tensors, where gradients have one.
    assert _short("bf16-z1-full-mb1x1", "buckets", "reduce", True) == 1e9 + 2 * 2 * table
    assert _short("bf16-z1-full-mb1x1", "buckets", "reduce", False) == 1e9
    # Stage 2 has reduced all others; without a copy of the bucket, three are more than the sum with it.
    assert _short("bf16-z2-full-mb1x1", "buckets", "reduce", True) == 1e9 + 2 * 3 * table
    # FSDP has, in place of two gathered layers, the gradient of one and its copy, two tensors more.
    found = _short("bf16-fsdp-full-mb1x1", "buckets", "reduce", True)
    assert found == pytest.approx(2 * (3072 + table) + 2 * 2 * table - 2 * 2 * layer)
    # What autocast has cast back is no view, and takes the sum.
    assert _short("bf16-ddp-full-mb1x1", "gradients", "reduce", True) == 4 * (total + table)
    assert _short("fp32-ddp-full-mb1x1", "gradients", "reduce", True) == 4 * (total + 2 * table)


def test_deepspeed_widens_the_largest_gradient_for_its_norm() -> None:
    table, layer = 128256 * 3072, 2 * 3072 * (3072 + 1024) + 3 * 3072 * 8192 + 2 * 3072
    total = 28 * layer + 3072 + table
    # Rank 0 has the embedding's of 8 bytes an element, more than 6 bytes of its eighth of all gradients.
    assert _short("bf16-z2-full-mb1x1", "step transients", "step", True) == 8 * table
    # Of stage 3, each rank has an eighth of it.
    assert _short("bf16-z3-full-mb1x1", "step transients", "step", True) == pytest.approx((2 + 4) * total / 8)


def test_offload_takes_the_states_out_of_hbm() -> None:
    assert _bytes("bf16-z2-full-mb1x8-oopt", "optimizer states", "step") == 0
    assert _bytes("bf16-z2-full-mb1x8-oopt", "master weights", "step") == 0
    assert _bytes("bf16-z3-full-mb1x8-oparam", "weights", "step") == 0
    # Two of the 32 layers' checkpoints wait for the host link: 2 x 4096 tokens x 4096 x 2 bytes.
    assert _bytes("bf16-z3-full-mb1x8-oact", "activations", "backward") == pytest.approx(2 * 4096 * 4096 * 2)


def _recipe(plan: str, workload: Workload | None = None) -> Recipe:
    return lower(workload or Workload(LLAMA_2_7B, H100, 8, 4096, gpus_per_node=1), Plan.parse(plan))


def test_a_gpt_layer_keeps_34_bytes_with_its_masks() -> None:
    # 2205.05198, section 4.1 counts 34 sbh; with flash attention and without the masks of dropout (2 bytes), the
    # dropped copies being the same tensors, 2 norms x 4h + 8h for q, k, v, out + 16h, and 4 bytes a head.
    shape = shape_of(GPT, None)
    kept = layer_bytes(shape, _recipe("bf16-z0-none-mb1x8"))
    assert kept.norms == 8 * 1024
    assert kept.attention == 8 * 1024 + 4 * 16
    assert kept.mlp == 16 * 1024
    assert layer_bytes(replace(shape, hidden_dropout=0.1), _recipe("bf16-z0-none-mb1x8")).masks == 2 * 1024


def test_the_last_norm_keeps_its_input_and_the_head_its_output_until_the_loss_is_differentiated() -> None:
    # A checkpointed Llama keeps 2 x 32 x 4096 bytes a token between layers. The last norm keeps its input in fp32 and
    # the normalised one, and the head its input: (4 + 2 + 2) x 4096 bytes more, free before the last layer's turn.
    assert _bytes("bf16-z2-full-mb8x1", "activations", "loss") == pytest.approx(8 * 4096 * (2 * 32 + 8) * 4096)
    assert _bytes("bf16-z2-full-mb8x1", "activations", "backward") == pytest.approx(8 * 4096 * 2 * 32 * 4096)
    llama = shape_of(LLAMA_2_7B, None)
    assert final_norm_bytes(llama, _recipe("bf16-z0-none-mb1x8")) == 8 * 4096
    # Liger's kernel keeps the input as it is; autocast makes a norm's input fp32 and casts what the head reads.
    assert final_norm_bytes(llama, replace(_recipe("bf16-z0-none-mb1x8"), liger_layers=True)) == 4 * 4096
    assert final_norm_bytes(llama, _recipe("bf16-ddp-none-mb1x8")) == (4 + 4 + 2) * 4096
    # A frozen norm scales for nothing, and a frozen head does not read its input again.
    assert final_norm_bytes(replace(llama, has_adapter=True), _recipe("bf16-z0-none-mb1x8")) == 4 * 4096
    # BERT has none.
    assert not shape_of(replace(LLAMA_2_7B, final_norm=False), None).final_norm


def test_at_the_loss_fsdp_has_one_layer_gathered_besides_the_root() -> None:
    # While layers compute, the next one arrives; after the last one, only what it was copied from is left
    # (_fsdp_param_group.py, all_gather_state). The root unit is embedding, head and the last norm.
    root, layer = 2 * (2 * 32000 * 4096 + 4096), 2 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
    found = [_bytes("bf16-fsdp-full-mb8x1", "gathered units", phase) for phase in ("forward", "loss", "backward")]
    assert found == [root + 2 * layer, root + layer, root + 2 * layer]


def test_logits_that_a_loop_keeps_are_widened_by_accelerate() -> None:
    loop = Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8, keeps_outputs=True)
    plain, logits = replace(loop, keeps_outputs=False), 4096 * 32000
    for plan in ("bf16-ddp-full-mb1x8", "fp16-fsdp-full-mb1x8"):
        # 4 bytes instead of 2 beside what the loss makes, and 4 until the next micro-batch has its own.
        more = _bytes(plan, "logits", "loss", loop) - _bytes(plan, "logits", "loss", plain)
        assert more == pytest.approx(2 * logits)
        for phase in ("backward", "reduce", "step"):
            assert _bytes(plan, "logits", phase, loop) == 4 * logits
            assert _bytes(plan, "logits", phase, plain) == 0
    # At the end of the forward pass 4 bytes of the loss's own copy and 4 of the log-softmax, beside the logits.
    assert _bytes("bf16-ddp-full-mb1x8", "logits", "forward", loop) == (4 + 8) * logits
    assert _bytes("bf16-ddp-full-mb1x8", "logits", "forward", plain) == (2 + 8) * logits
    assert _bytes("fp16-fsdp-full-mb1x8", "logits", "forward", loop) == 4 * logits
    # DeepSpeed's own precision widens nothing, fp32 needs it not, and a fused loss has no logits.
    for plan in ("bf16-z2-full-mb1x8", "fp32-ddp-full-mb1x8", "bf16-ddp-full-mb1x8-fl"):
        assert [_bytes(plan, "logits", phase, loop) for phase in PHASES] == [
            _bytes(plan, "logits", phase, plain) for phase in PHASES
        ]


@pytest.mark.parametrize(
    ("changes", "each"),
    [
        # The log-softmax and two gradients in fp32, without the logits that nobody holds any more.
        ({}, 12),
        # A fused kernel or a compiled loss holds them itself.
        ({"loss_kernel_bytes": 4.0}, 2 + 4),
        ({"compiles_loss": True}, 2 + 2),
        # transformers up to 4.48 copied the fp32 logits to shift them, beside the log-softmax and the logits.
        ({"shifts_logits": True}, 2 + 4 + 4 + 4),
        # Up to 4.45 it had no others by then, but returned them: whoever keeps them has them beside 12 bytes.
        ({"shifts_logits": True, "returns_fp32_logits": True}, 4 + 4 + 4),
        ({"shifts_logits": True, "returns_fp32_logits": True, "drops_outputs": False}, 4 + 12),
        ({"upcasts_loss": False}, 3 * 2),
    ],
)
def test_logits_that_the_caller_drops(changes: dict[str, bool], each: int) -> None:
    recipe = replace(_recipe("bf16-z0-full-mb1x8"), **{"drops_outputs": True, **changes})  # type: ignore[arg-type]
    assert logit_bytes(shape_of(LLAMA_2_7B, None), recipe, CLEAN) == each


def test_a_llama_layer_compiled_and_eager() -> None:
    shape, recipe = shape_of(LLAMA_2_7B, None), _recipe("bf16-z0-none-mb1x8")
    eager, compiled = layer_bytes(shape, recipe), layer_bytes(shape, replace(recipe, compiled=True))
    # Eager RMSNorm: an fp32 copy, the normalised input and the output: 8h, twice.
    assert eager.norms == 16 * 4096
    assert compiled.norms == 8 * 4096
    # Gate, up, activated gate and product at 2 bytes: 8 x ffn; compiled code recomputes one of them.
    assert eager.mlp == 8 * 11008
    assert compiled.mlp == 6 * 11008


def test_autocast_casts_the_input_of_each_projection() -> None:
    recipe = _recipe("bf16-ddp-none-mb1x8")
    # Each RMSNorm keeps its input and the normalised input in fp32: 8h, twice. Queries, keys, values, gate and up cast
    # what they read to 2 bytes, each for itself.
    assert layer_bytes(shape_of(LLAMA_2_7B, None), recipe).norms == (16 + 5 * 2) * 4096
    # GPT-2 has one projection for queries, keys and values, and LayerNorm keeps its input only: 4h, twice.
    gpt2 = from_hf_config({"model_type": "gpt2"})
    assert layer_bytes(shape_of(gpt2, None), recipe).norms == (8 + 2 * 2) * 768


def test_autocast_keeps_copies_of_weights_through_the_forward_pass_and_without_checkpointing_for_longer() -> None:
    # All but the embedding and the norms' scales in the root, 2 bytes each; a layer recomputed casts its own again, and
    # the head, which is not checkpointed, keeps its copy until the loss is differentiated.
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    head = 2 * 32000 * 4096
    cast = 2 * 32 * layer + head
    phases = ("forward", "loss", "backward", "step")
    for checkpointing, last in (("none", cast), ("sel", 2 * layer), ("full", 2 * layer), ("every4", 8 * layer)):
        plan = f"bf16-ddp-{checkpointing}-mb1x8"
        loss = cast if checkpointing == "none" else head
        assert [_bytes(plan, "autocast copies", phase) for phase in phases] == pytest.approx([cast, loss, last, 0])


@pytest.mark.parametrize(
    ("checkpointing", "copied"),
    # Matrices of all layers and of the head; or the head's, until the loss is differentiated, and those of one layer.
    [("none", (3, 3, 3, 1, 0)), ("full", (2, 2, 1, 1, 0))],
)
def test_autocast_casts_a_frozen_base_in_fp32_in_each_product(checkpointing: str, copied: tuple[int, ...]) -> None:
    """The product saves the copy for the gradient of its input; none is cached (autocast_mode.cpp, cached_cast)."""
    shape = shape_of(LLAMA_2_7B, Adapter(16, ("q_proj", "v_proj")))
    recipe = replace(_recipe(f"bf16-ddp-{checkpointing}-mb1x8"), base_bytes=4.0, frozen_bytes=4.0)
    layer, head = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096, 32000 * 4096
    parts = (0, layer, head, 32 * layer + head)
    phases = ("forward", "loss", "backward", "first layer", "step")
    assert _copies(shape, recipe, phases) == pytest.approx([2 * parts[each] for each in copied])
    assert boundary_bytes(shape, recipe) == 4 * 4096
    # In the compute format the base needs no copy, without autocast neither.
    for other in (replace(recipe, base_bytes=2.0, frozen_bytes=2.0), replace(recipe, compute_bytes=4)):
        assert _copies(shape, other, phases) == [0] * 5
        assert boundary_bytes(shape, other) == other.compute_bytes * 4096


def _copies(shape: Shape, recipe: Recipe, phases: tuple[str, ...]) -> list[float]:
    terms = [term for term in state_terms(shape, recipe) if term.name == "autocast copies"]
    return [sum(term.bytes for term in terms if phase in term.phase_names) for phase in phases]


def test_autocast_casts_the_head_that_peft_widened() -> None:
    quantized = Workload(LLAMA_2_7B, H100, 8, 4096, adapter=Adapter(8, ("q_proj",), "nf4"))
    phases = ("forward", "loss", "backward")
    # 2 bytes of each weight of the head, until the loss is differentiated; cast back to 16 bits, it is taken as it is.
    for workload, copy in ((quantized, 2 * 32000 * 4096), (replace(quantized, casts_frozen=True), 0)):
        kept = [_bytes("bf16-ddp-full-mb1x8", "autocast copies", phase, workload) for phase in phases]
        assert kept == [0, copy, 0]


@pytest.mark.parametrize(("activation", "tensors"), [("gelu", 2), ("relu", 1), ("gelu_new", 5), ("quick_gelu", 3)])
def test_an_activation_that_is_written_out_keeps_more(activation: str, tensors: int) -> None:
    gpt2 = from_hf_config({"model_type": "gpt2", "activation_function": activation})
    assert layer_bytes(shape_of(gpt2, None), _recipe("bf16-z0-none-mb1x8")).mlp == tensors * 2 * 3072


def test_layers_of_liger_keep_their_inputs_and_write_gradients_into_them() -> None:
    recipe = replace(_recipe("bf16-z2-none-mb1x8"), liger_layers=True)
    kept = layer_bytes(shape_of(LLAMA_2_7B, None), recipe)
    # Each norm its input and its output, 2 bytes each; the feed-forward its gate, up and their product.
    assert (kept.norms, kept.mlp) == (2 * (2 + 2) * 4096, 3 * 2 * 11008)
    terms = activation_terms(shape_of(LLAMA_2_7B, None), recipe, DEFAULT_CONSTANTS)
    # Beside them the product's gradient alone, which becomes those of gate and up in their places.
    assert terms[-1].bytes == 2 * 11008 * 4096


def test_a_loss_that_differentiates_at_once_has_gradients_beside_a_part_of_the_logits() -> None:
    recipe = replace(
        _recipe("bf16-z2-full-mb8x1"), fused_loss=True, loss_chunks=16, loss_kernel_bytes=0.0, loss_differentiates=True
    )
    llama = shape_of(LLAMA_2_7B, None)

    def at_the_loss(shape: Shape, name: str) -> float:
        return sum(t.bytes for t in buffer_terms(shape, recipe, CLEAN) if t.name == name and LOSS in t.phases)

    tokens, head = 8 * 4096, 32000 * 4096
    # A sixteenth of the logits, whose gradients take their place.
    assert at_the_loss(llama, "logits") == 2 * tokens / 16 * 32000
    # The gradient of the hidden states; that of the head, a part's product and its copy in fp32.
    assert at_the_loss(llama, "gradients") == 2 * tokens * 4096 + (2 + 2 + 4) * head
    assert at_the_loss(replace(llama, has_adapter=True), "gradients") == 2 * tokens * 4096


def test_kernels_fuse_norms_and_activations_apart() -> None:
    llama, recipe = shape_of(LLAMA_2_7B, None), _recipe("bf16-z2-none-mb1x8")
    fused_norms = layer_bytes(llama, replace(recipe, fused_norms=True))
    fused_activation = layer_bytes(llama, replace(recipe, fused_activation=True))
    # A norm's input and output in 16 bits, or the input in fp32, a normalised copy and the output; of a feed-forward
    # the gate, the other factor and the product, and without fusion the activation.
    assert (fused_norms.norms, fused_norms.mlp) == (2 * (2 + 2) * 4096, 4 * 2 * 11008)
    assert (fused_activation.norms, fused_activation.mlp) == (2 * (4 + 2 + 2) * 4096, 3 * 2 * 11008)
    # Autocast computes norms in fp32: each keeps that input, and five projections cast the outputs.
    autocast = replace(_recipe("bf16-ddp-none-mb1x8"), fused_norms=True)
    assert layer_bytes(llama, autocast).norms == 2 * 4 * 4096 + 5 * 2 * 4096


def test_autocast_computes_powers_and_their_results_in_fp32() -> None:
    gpt2 = shape_of(from_hf_config({"model_type": "gpt2", "activation_function": "gelu_new"}), None)
    # The power's input, the tanh and one plus it in 4 bytes; half the input, and what goes into the projection, in 2.
    assert layer_bytes(gpt2, _recipe("bf16-ddp-none-mb1x8")).mlp == (3 * 4 + 2 * 2) * 3072
    # Of a gate what it multiplies, too, and the other factor.
    gated = replace(gpt2, gated=True)
    assert layer_bytes(gated, _recipe("bf16-ddp-none-mb1x8")).mlp == (4 * 4 + 3 * 2) * 3072


def test_norms_of_queries_and_keys_keep_the_same_as_other_norms() -> None:
    config = {"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8}
    normed = shape_of(from_hf_config(config), None)
    kept = [layer_bytes(replace(normed, query_key_norm=each), _recipe("bf16-z0-none-mb1x8")) for each in (True, False)]
    # Of 16 and 8 heads of 128, 4 bytes for the input and 2 for what the scale multiplies.
    assert kept[0].attention - kept[1].attention == 6 * (2048 + 1024)


def test_frozen_norms_of_queries_and_keys_keep_their_fp32_input_alone() -> None:
    adapted, plan = shape_of(LLAMA_2_7B, Adapter(8, ("q_proj",))), Plan.parse("bf16-z2-none-mb1x8")
    normed = replace(adapted, query_key_norm=True)
    recipe = lower(Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8), plan)
    # 4,096 queries and as many keys; their normalised copies, of 2 bytes, are read by trainable scales only.
    assert layer_bytes(normed, recipe).total - layer_bytes(adapted, recipe).total == 4 * (4096 + 4096)


def test_eager_attention_keeps_the_scores() -> None:
    shape, recipe = shape_of(GPT, None), _recipe("bf16-z0-none-mb1x8")
    flash = layer_bytes(shape, recipe).attention
    eager = layer_bytes(shape, replace(recipe, attention=Attention.EAGER)).attention
    # 16 heads x 4096 keys x (2 bytes + 4 of the fp32 softmax) a token.
    assert eager - flash == 16 * 4096 * 6
    # Written out in fp32: 4 bytes of the exponentials, and 4 of their quotient.
    wide = replace(recipe, compute_bytes=4, attention=Attention.EAGER)
    written_out, kernel = replace(wide, writes_softmax=True), replace(wide, attention=Attention.FLASH)
    assert layer_bytes(shape, written_out).attention - layer_bytes(shape, kernel).attention == 16 * 4096 * 8


@pytest.mark.parametrize(
    ("plan", "virtual", "each"),
    # Both gradients of the softmax in fp32, on a GPU the product of one with its output, less the 16-bit scores.
    [
        ("bf16-z0-full-mb1x8-eager", False, 10),
        ("fp32-ddp-full-mb1x8-eager", False, 12),
        ("bf16-z0-full-mb1x8-eager", True, 6),
    ],
)
def test_gradients_of_scores_are_made_in_the_backward_pass(plan: str, virtual: bool, each: int) -> None:
    workload = Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8, virtual=virtual)
    assert _bytes(plan, "layer in backward", "reduce", workload) == each * 32 * 4096 * 4096
    # Of short sequences the gradients inside the feed-forward are more.
    short = replace(workload, sequence_length=64)
    assert _bytes(plan, "layer in backward", "reduce", short) > each * 32 * 64 * 64


def test_a_family_that_no_kernel_knows_makes_its_scores() -> None:
    workload = Workload(from_hf_config({"model_type": "bloom", "n_layer": 2}), H100, 8, 512)
    assert lower(workload, Plan.parse("bf16-z0-none-mb1x8")).attention is Attention.EAGER


def test_scores_with_a_softcap_are_kept_under_every_kernel() -> None:
    architecture = from_hf_config({"model_type": "gemma2", "num_hidden_layers": 2})
    assert architecture.attention_softcap == 50.0
    plan, workload = Plan.parse("bf16-z0-none-mb1x8"), Workload(architecture, H100, 64, 4096, gpus_per_node=8)
    recipe, shape = lower(workload, plan), shape_of(architecture, None)
    assert recipe.attention is Attention.EAGER
    plain = replace(shape, attention_softcap=0.0)
    # The tanh of 8 heads x 4096 keys, in 2 bytes; compiled, it is made anew.
    assert layer_bytes(shape, recipe).attention - layer_bytes(plain, recipe).attention == 8 * 4096 * 2
    compiled = replace(recipe, compiled=True)
    assert layer_bytes(shape, compiled).attention == layer_bytes(plain, compiled).attention
    without = Workload(replace(architecture, attention_softcap=0.0), H100, 64, 4096, gpus_per_node=8)
    assert lower(without, plan).attention is Attention.FLASH
    assert Predictor(workload).predict(plan).step_seconds > Predictor(without).predict(plan).step_seconds


def test_dropout_of_scores_takes_the_place_of_the_narrowed_ones() -> None:
    shape, recipe = replace(shape_of(GPT, None), attention_dropout=0.1), _recipe("bf16-z0-none-mb1x8-eager")

    def scores(**changes: Any) -> float:
        eager = replace(recipe, **changes)
        flash = replace(eager, attention=Attention.FLASH)
        return (layer_bytes(shape, eager).attention - layer_bytes(shape, flash).attention) / (16 * 4096)

    # An fp32 softmax, what is left of its narrowed copy, and a byte of the mask.
    assert scores() == 4 + 2 + 1
    # A softmax in 16 bits: its result, what is left of it, and the mask.
    assert scores(upcasts_scores=False) == 2 + 2 + 1
    assert scores(compute_bytes=4) == 4 + 4 + 1


@pytest.mark.parametrize(("family", "plan", "widens"), [
    ("gpt2", "bf16-z2-none-mb1x1-eager", False),
    ("gpt2", "bf16-ddp-none-mb1x1-eager", True),
    ("llama", "bf16-z2-none-mb1x1-eager", True),
])  # fmt: skip
def test_a_familys_own_softmax_may_be_in_16_bits(family: str, plan: str, widens: bool) -> None:
    workload = Workload(from_hf_config({"model_type": family}), H100, 1, 512, without_autocast=True)
    assert lower(workload, Plan.parse(plan)).upcasts_scores is widens


def test_cuda_has_no_kernel_that_shares_heads_in_32_bits() -> None:
    grouped = from_hf_config({"model_type": "llama", "num_key_value_heads": 8})
    workload = Workload(grouped, H100, 1, 2048, in_transformers=True)
    fp32, shape = lower(workload, Plan.parse("fp32-ddp-none-mb1x1-sdpa")), shape_of(grouped, None)
    assert fp32.attention is Attention.EAGER
    # 32 heads x 2048 keys x 4 bytes of the softmax a token, beside queries, keys and values of as many heads.
    fused = replace(fp32, attention=Attention.SDPA)
    assert layer_bytes(shape, fp32).attention - layer_bytes(shape, fused).attention == 32 * 2048 * 4
    for changes, plan in (
        ({"in_transformers": False}, "fp32-ddp-none-mb1x1-sdpa"),
        ({}, "bf16-ddp-none-mb1x1-sdpa"),
        ({"virtual": True}, "fp32-ddp-none-mb1x1-sdpa"),
        ({"model": LLAMA_2_7B}, "fp32-ddp-none-mb1x1-sdpa"),
    ):
        assert lower(replace(workload, **changes), Plan.parse(plan)).attention is Attention.SDPA


def test_transformers_layers_keep_the_counted_activations() -> None:
    workload = Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8)
    other, own = (
        _bytes("bf16-z2-none-mb8x1", "activations", "backward", replace(workload, in_transformers=each))
        for each in (False, True)
    )
    assert other == pytest.approx(DEFAULT_CONSTANTS.activation_factor * own)


def test_gradients_that_fsdp_reduces_with_the_last_micro_batch() -> None:
    workload = Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8, defers_reduction=True)
    phases = ("loss", "backward", "reduce", "step")

    def gradients(plan: str) -> list[float]:
        return [_bytes(plan, "gradients", phase, workload) for phase in phases]

    # Whole ones of earlier micro-batches, in the dtype of the reduction; the step has a share in fp32.
    assert gradients("bf16-fsdp-full-mb1x8") == [2 * P, 2 * P, 2 * P, 4 * P / 8]
    assert gradients("bf16-fsdp-full-mb1x8-g32") == [4 * P, 4 * P, 4 * P, 4 * P / 8]
    # Offloading takes them to the host when they are reduced.
    assert gradients("bf16-fsdp-full-mb1x8-oparam") == [2 * P, 2 * P, 2 * P, 0]
    # None are left from one micro-batch, and DeepSpeed reduces its own.
    assert gradients("bf16-fsdp-full-mb8x1") == [0, 0, 4 * P / 8, 4 * P / 8]
    assert gradients("bf16-z2-full-mb1x8") == [2 * P / 8] * 4


def test_an_adapter_keeps_the_norms_that_it_reads() -> None:
    recipe = lower(Workload(LLAMA_2_7B, H100, 8, 4096, gpus_per_node=8), Plan.parse("bf16-fsdp-none-mb1x1"))

    def norms(*targets: str) -> float:
        return layer_bytes(shape_of(LLAMA_2_7B, Adapter(8, targets)), recipe).norms

    # Each of two norms keeps its input in fp32, and its output if an adapter behind it needs that.
    read_by = {targets: norms(*targets) - 2 * 4 * 4096 for targets in (("o_proj",), ("q_proj",), ("q_proj", "up_proj"))}
    assert list(read_by.values()) == [0, 2 * 4096, 2 * 2 * 4096]


def test_fsdp1_differentiates_frozen_weights_of_units_with_trained_ones() -> None:
    shape = shape_of(LLAMA_2_7B, Adapter(8, ("q_proj",)))
    apart = lower(Workload(LLAMA_2_7B, H100, 8, 4096, gpus_per_node=8), Plan.parse("bf16-fsdp-none-mb1x1"))
    mixed = replace(apart, mixes_units=True)
    # Two normalised inputs for the norms' scales, and the inputs of the feed-forward's three projections.
    assert layer_bytes(shape, mixed).total - layer_bytes(shape, apart).total == 2 * (2 * 4096 + 4096 + 11008)
    layers, adapter = P - 2 * 32000 * 4096 - 4096, 32 * 8 * 2 * 4096

    def bytes_of(name: str, phase: str, recipe: Recipe) -> float:
        terms = [*state_terms(shape, recipe), *buffer_terms(shape, recipe, CLEAN)]
        return sum(term.bytes for term in terms if term.name == name and phase in term.phase_names)

    assert bytes_of("gradients", "step", apart) == pytest.approx(4 * adapter / 8)
    assert bytes_of("gradients", "step", mixed) == pytest.approx(4 * (layers + adapter) / 8)
    # A layer's unsharded gradients and their copy; the root unit has none, since all of it is frozen.
    assert bytes_of("buckets", "reduce", apart) == 0
    assert bytes_of("buckets", "reduce", mixed) == pytest.approx(2 * 2 * layers / 32)


def test_tensor_parallelism_may_leave_logits_and_the_embedding_whole() -> None:
    shape, recipe = shape_of(LLAMA_2_7B, None), replace(_recipe("bf16-z0-full-mb8x1"), tensor_parallel=4)
    table = 32000 * 4096

    def term(name: str, found: Recipe) -> float:
        terms = [*state_terms(shape, found), *buffer_terms(shape, found, CLEAN)]
        return next(term.bytes for term in terms if term.name == name)

    assert term("weights", recipe) == pytest.approx(2 * P / 4)
    assert term("weights", replace(recipe, whole_embedding=True)) == pytest.approx(2 * (table + (P - table) / 4))
    # Elementary operations on a quarter of the logits keep one fp32 tensor more.
    assert term("logits", recipe) == pytest.approx((2 + 4 * 4) * 8 * 4096 * 32000 / 4)
    assert term("logits", replace(recipe, whole_logits=True)) == pytest.approx(14 * 8 * 4096 * 32000)


def test_checkpointing_keeps_inputs() -> None:
    shape, recipe = shape_of(LLAMA_2_7B, None), _recipe("bf16-z0-full-mb1x8")
    assert recipe.checkpointing == FULL
    assert boundary_bytes(shape, recipe) == 2 * 4096
    # Selective: q, v, gate and down products, the attention's output and the input: 2 x (4 x 4096 + 4096 + 11008).
    assert selective_bytes(shape, recipe) == 2 * (5 * 4096 + 11008) + 4 * 32


@pytest.mark.parametrize(
    ("model", "plan", "without_autocast", "each"),
    [
        # The logits, their log-softmax and two gradients: in 16 bits, or the last three in 32.
        (BERT, "bf16-fsdp-none-mb2x1", True, 8),
        (BERT, "fp16-z3-full-mb2x1", True, 8),
        # Autocast lets the log-softmax widen them, whose gradient is in 16 bits again.
        (BERT, "bf16-ddp-none-mb2x1", True, 12),
        (BERT, "bf16-fsdp-none-mb2x1", False, 12),
        (BERT, "fp32-fsdp-none-mb2x1-sdpa", True, 16),
        ({"model_type": "t5"}, "bf16-z1-none-mb2x1", True, 8),
        ({"model_type": "llama"}, "bf16-fsdp-none-mb2x1", True, 14),
    ],
)
def test_a_model_may_compute_its_own_loss_of_logits_as_they_are(
    model: dict[str, object], plan: str, without_autocast: bool, each: int
) -> None:
    architecture = from_hf_config(model)
    workload = Workload(architecture, H100, 2, 512, without_autocast=without_autocast)
    assert _bytes(plan, "logits", "loss", workload) == each * 2 * 512 * architecture.vocab_size


def test_logits_are_upcast_unless_the_loss_is_fused() -> None:
    recipe, shape = _recipe("bf16-z0-full-mb1x8"), shape_of(LLAMA_2_7B, None)
    # 2 bytes and three fp32 tensors.
    assert logit_bytes(shape, recipe, replace(CLEAN, eager_loss_bytes=12.0)) == 14
    # In bf16 throughout, 8; with the fourth fp32 tensor of tensor parallelism, 18.
    assert logit_bytes(shape, replace(recipe, upcasts_loss=False), replace(CLEAN, eager_loss_bytes=12.0)) == 8
    assert logit_bytes(shape, replace(recipe, tensor_parallel=8), replace(CLEAN, eager_loss_bytes=12.0)) == 18
    # A tanh keeps what it made, in 2 bytes.
    capped = replace(shape, logit_softcap=30.0)
    assert logit_bytes(capped, recipe, replace(CLEAN, eager_loss_bytes=12.0)) == 16
    assert logit_bytes(capped, replace(recipe, loss_kernel_bytes=6.0), CLEAN) == 10
    plain, fused = (_bytes(plan, "logits", "loss") for plan in ("bf16-z2-full-mb1x8", "bf16-z2-full-mb1x8-fl"))
    assert plain == pytest.approx((2 + DEFAULT_CONSTANTS.eager_loss_bytes) * 4096 * 32000)
    assert fused == pytest.approx(plain / 8)


@pytest.mark.parametrize(
    ("adapter", "autocast", "expected"),
    [
        # The copy, its cast and a part's logits in 16 bits. The part is counted as logits already, with 14 bytes each.
        (True, True, 6 * 4096 + (2 - 14) * 256),
        # What the product saved, beside all of the part.
        (True, False, 4 * 4096),
        # The same cast, and the gradient of the copy in its place.
        (False, True, 6 * 4096 + (2 - 14) * 256),
        (False, False, 8 * 4096 + (4 - 14) * 256),
    ],
)
def test_a_loss_that_widens_the_head_copies_it(adapter: bool, autocast: bool, expected: int) -> None:
    """Emulated, a Llama of 4 layers of width 1,024 with 65,536 entries takes 859, 953, 1,809 and 1,865 MiB; predicted
    are 863, 895, 1,814 and 1,874.
    """
    plain = replace(
        _recipe("bf16-ddp-full-mb1x8"), fused_loss=True, loss_chunks=16.0, weight_bytes=2.0, gradient_bytes=2.0,
        without_autocast=not autocast,
    )  # fmt: skip
    shape = shape_of(LLAMA_2_7B, Adapter(8, ("all-linear",)) if adapter else None)
    before, after = (
        sum(term.bytes for term in buffer_terms(shape, recipe, DEFAULT_CONSTANTS) if LOSS in term.phases)
        for recipe in (plain, replace(plain, widens_head=True))
    )
    assert after - before == pytest.approx(32000 * expected)


def test_a_head_in_fp32_is_not_copied_for_the_loss() -> None:
    wide = replace(_recipe("bf16-ddp-full-mb1x8"), fused_loss=True, frozen_bytes=4.0)
    for shape in (shape_of(LLAMA_2_7B, adapter) for adapter in (None, Adapter(8, ("all-linear",)))):
        found = [buffer_terms(shape, replace(wide, widens_head=widens), DEFAULT_CONSTANTS) for widens in (False, True)]
        assert found[0] == found[1]


@pytest.mark.parametrize(
    ("plan", "dropout", "extra"),
    [
        # Modules share what they read, and keep the outputs of two norms and the input of `down` for the adapter.
        ("bf16-z2-none-mb1x8", 0.0, 2 * (2 * 4096 + 11008)),
        # Dropped, each of 6 of width 4096 and that of 11008 has its own in 2 bytes, and a mask of 1.
        ("bf16-z2-none-mb1x8", 0.05, 3 * (6 * 4096 + 11008)),
        # Under autocast each casts its own.
        ("bf16-ddp-none-mb1x8", 0.0, 2 * (6 * 4096 + 11008)),
        ("bf16-ddp-none-mb1x8", 0.05, 3 * (6 * 4096 + 11008)),
        ("fp32-ddp-none-mb1x8", 0.05, 5 * (6 * 4096 + 11008)),
    ],
)
def test_adapters_keep_their_inputs(plan: str, dropout: float, extra: int) -> None:
    recipe = _recipe(plan)
    shape = shape_of(LLAMA_2_7B, Adapter(8, ("all-linear",), dropout=dropout))
    assert shape.adapter_reads == 6 * 4096 + 11008
    bare = replace(shape, adapted=frozenset(), adapter_reads=0)
    assert layer_bytes(shape, recipe).total - layer_bytes(bare, recipe).total == extra


@pytest.mark.parametrize(("dropout", "each"), [(0.0, 4), (0.05, 5)])
def test_a_wider_adapter_without_autocast_keeps_what_it_read_in_its_own_format(dropout: float, each: int) -> None:
    """A Llama of 0.12B with q, k, v and o adapted keeps 256 MiB more of 4,096 tokens, emulated, than with autocast.

    That is 2 bytes for each of 4 modules of width 1,024 in 8 layers.
    """
    recipe = replace(_recipe("bf16-ddp-none-mb1x8"), without_autocast=True)
    shape = shape_of(LLAMA_2_7B, Adapter(8, ("all-linear",), dropout=dropout))
    assert layer_bytes(shape, recipe).inputs == each * (6 * 4096 + 11008)
    beside = replace(recipe, base_bytes=0.5625)
    assert layer_bytes(shape, beside).inputs == each * (6 * 4096 + 11008)
    # FSDP casts the units that it gathers.
    assert not replace(recipe, backend="fsdp").widens_inputs


def test_an_adapter_of_a_quantized_base_shares_the_input_of_its_layer() -> None:
    """Under autocast peft casts nothing beside bitsandbytes' layers (emulated: 9.14 GiB of 9.13 predicted)."""
    recipe = replace(_recipe("bf16-ddp-none-mb1x8"), base_bytes=0.5625)
    shape = shape_of(LLAMA_2_7B, Adapter(8, ("all-linear",), "nf4"))
    bare = replace(shape, adapted=frozenset(), adapter_reads=0)
    # The outputs of two norms and the input of the down projection, once each.
    assert layer_bytes(shape, recipe).total - layer_bytes(bare, recipe).total == 2 * (2 * 4096 + 11008)
    dropped = replace(shape, adapter_dropout=0.05)
    assert layer_bytes(dropped, recipe).inputs == 3 * (6 * 4096 + 11008)


def test_selective_checkpointing_keeps_no_product_of_a_quantized_weight() -> None:
    """They are operations of bitsandbytes (emulated: 5.48 GiB of 5.41 predicted, where all products make 12.1)."""
    shape, recipe = shape_of(LLAMA_2_7B, Adapter(8, ("all-linear",), "nf4")), _recipe("bf16-ddp-sel-mb1x8")
    quantized = replace(recipe, base_bytes=0.5625)
    # Of a narrow and a wide product of each module the narrow ones, which are not counted: attention's output,
    # the hidden state between layers, and the softmax's sums.
    assert selective_bytes(shape, quantized) == 2 * 4096 + 2 * 4096 + 4 * 32
    assert selective_bytes(shape, recipe) > 2 * 11008


def test_adapters_of_cross_attention_and_fused_modules_share_their_inputs() -> None:
    dropped = Adapter(8, ("all-linear",), dropout=0.1)
    t5 = shape_of(from_hf_config({"model_type": "t5"}), dropped)
    # Of both stacks four projections of 512 and the feed-forward's 512 and 2048; of the decoder four more.
    assert (t5.adapter_reads, t5.crossing_reads) == (4 * 512 + 512 + 2048, 4 * 512)
    phi = shape_of(from_hf_config({"model_type": "phi3"}), dropped)
    # qkv_proj, o_proj, gate_up_proj and down_proj.
    assert phi.adapter_reads == 3 * 3072 + 8192


def test_every_second_layer_may_be_checkpointed() -> None:
    shape = shape_of(LLAMA_2_7B, None)
    half = replace(_recipe("bf16-fsdp-full-mb1x8"), checkpoints_half=True)

    def kept(recipe: Recipe) -> float:
        terms = activation_terms(shape, recipe, CLEAN)
        return sum(term.bytes for term in terms if term.name == "activations" and BACKWARD in term.phases)

    # 16 layers keep their input, 2 bytes of 4096, and 16 all: with flash attention and eager norms that is 12 bytes of
    # each norm, 2 x 4 x 4096 of attention with 4 a head, and 2 x 4 x 11008 of the feed-forward.
    whole = 2 * (4 + 2 + 2) * 4096 + 2 * 4 * 4096 + 4 * 32 + 2 * 4 * 11008
    assert kept(half) == pytest.approx(16 * 4096 * (2 * 4096 + whole))


def test_the_first_layers_are_recomputed_beside_the_gradients_of_all_others() -> None:
    # 4096 tokens, a table and a head of 256 x 1024, and 24 layers of 12 x 1024^2 weights and 4 x 1024 of norms.
    model = replace(GPT, vocab_size=256)
    shape, recipe = shape_of(model, None), _recipe("fp32-ddp-every4-mb1x1")
    layer = 12 * 1024**2 + 4 * 1024
    # A layer keeps 4 bytes of twice 1024 for each norm, of four times 1024 for its attention with 4 for each of 16
    # heads, and of twice 4096 for its feed-forward: 65,600 a token, and 4 x 1024 of its input if it is checkpointed.
    each = 4 * (2 * 2 + 4) * 1024 + 4 * 16 + 4 * 2 * 4096
    terms = [*state_terms(shape, recipe), *activation_terms(shape, recipe, CLEAN)]

    def living(name: str, phase: int) -> float:
        return sum(term.bytes for term in terms if term.name == name and phase in term.phases)

    inside = 2 * 4 * 4096 * 4096  # two tensors of a feed-forward
    assert living("layer in backward", FIRST_LAYER) == living("layer in backward", BACKWARD)
    assert living("layer in backward", FIRST_LAYER) == pytest.approx(4 * each * 4096 + inside)
    # Of six inputs that are kept one is left, and the gradients of the head and of 20 layers are there.
    assert living("activations", BACKWARD) == 6 * 4 * 1024 * 4096
    assert living("activations", FIRST_LAYER) == 4 * 1024 * 4096
    assert living("gradients", FIRST_LAYER) == pytest.approx(4 * (256 * 1024 + 20 * layer))


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_tied_head_has_its_gradient_before_the_first_layer_too(is_tied: bool) -> None:
    model = replace(GPT, tied_embeddings=is_tied, position_count=4096)
    workload, layer = Workload(model, H100, 8, 4096), 12 * 1024**2 + 4 * 1024
    # Those of the head and of 23 layers; positions, the last norm and what is looked up come last.
    found = [_bytes(f"bf16-ddp-{mode}-mb8x1", "gradients", "first layer", workload) for mode in ("none", "full")]
    assert found == pytest.approx([4 * (50257 * 1024 + 23 * layer)] * 2)
    # The other layers' copies of autocast are free by then.
    assert _bytes("bf16-ddp-none-mb8x1", "autocast copies", "first layer", workload) == 2 * layer


def test_an_adapter_has_the_gradients_of_all_layers_but_the_first() -> None:
    workload = Workload(LLAMA_2_7B, H100, 8, 4096, adapter=Adapter(16, ("q_proj", "v_proj")))
    each = 4 * 2 * 16 * (4096 + 4096)  # two projections of a layer, in fp32
    assert _bytes("bf16-ddp-full-mb8x1", "gradients", "first layer", workload) == pytest.approx(31 * each)
    assert _bytes("bf16-ddp-every4-mb8x1", "gradients", "first layer", workload) == pytest.approx(28 * each)


def test_while_the_first_layer_of_fsdp_computes_no_other_arrives() -> None:
    table, layer = 32000 * 4096, 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    for plan in ("bf16-fsdp-full-mb8x1", "bf16-fsdpsgo-full-mb8x1"):
        # The root unit, and one layer.
        assert _bytes(plan, "gathered units", "first layer") == pytest.approx(2 * (2 * table + 4096 + layer))
        # The head's gradient waits whole for the embedding's, and that of one layer is on its way. 31 are reduced.
        assert _bytes(plan, "buckets", "first layer") == pytest.approx(2 * table + 2 * 2 * layer)
        assert _bytes(plan, "gradients", "first layer") == pytest.approx(4 * 31 * layer / 8)


def test_a_step_in_the_backward_pass_leaves_one_layers_gradients() -> None:
    recipe = replace(_recipe("bf16-z0-full-mb8x1"), step_in_backward=True)
    (gradients,) = [term for term in state_terms(shape_of(LLAMA_2_7B, None), recipe) if term.name == "gradients"]
    # The first layer's, which are the last.
    layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert gradients.bytes == pytest.approx(2 * layer)
    assert gradients.phase_names == ("first layer", "reduce")


@pytest.mark.parametrize("target", [0, 500])
@pytest.mark.parametrize("is_tied", [False, True])
def test_the_first_layer_of_an_encoder_decoder_is_the_encoders(target: int, is_tied: bool) -> None:
    t5 = Architecture(
        "t5", Kind.ENCODER_DECODER, 512, 6, 8, 8, 64, 2048, 32128, gated_ffn=False, encoder_layers=4,
        relative_position_buckets=32, tied_embeddings=is_tied,
    )  # fmt: skip
    # Four projections and two of the feed-forward, with two norms; the decoder has four more and a norm.
    encoder = 4 * 512**2 + 2 * 512 * 2048 + 2 * 512
    decoder = encoder + 4 * 512**2 + 512
    # A table, or two; biases by position and a last norm of each stack.
    root = (2 - is_tied) * 32128 * 512 + 2 * 32 * 8 + 2 * 512
    workload = Workload(t5, H100, 8, 1000, gpus_per_node=8, target_length=target, in_transformers=True)

    def living(plan: str, name: str) -> float:
        return _bytes(plan, name, "first layer", workload)

    # A token's hidden state, one bias of 8 heads and 1000 x 1000 scores, which the layer joins with the mask again.
    kept, bias = 2 * 512 * 1000, 2 * 8 * 1000**2
    assert living("bf16-fsdp-full-mb1x1", "activations") == kept + bias
    # Recomputed are norms, q, k, v and out, and the feed-forward, as in the test of what cross-attention keeps. Beside
    # them are two tensors of a feed-forward, a bias's gradient and the sum of those of other layers.
    again = 2 * 10 * 512 + (4 * 2 * 512 + 4 * 8) + 2 * 2 * 2048
    inside = 2 * 2 * 2048 * 1000
    assert living("bf16-fsdp-full-mb1x1", "layer in backward") == pytest.approx(1000 * again + inside + 3 * bias)
    assert living("bf16-fsdp-none-mb1x1", "activations") == pytest.approx(1000 * again + 2 * bias)
    # The decoder has looked up its part of the table by then. FSDP reduces the root unit later.
    layers = 3 * encoder + 6 * decoder
    assert living("fp32-ddp-full-mb1x1", "gradients") == pytest.approx(4 * (layers + root))
    assert living("bf16-fsdp-full-mb1x1", "gradients") == pytest.approx(4 * layers / 8)
    assert living("bf16-fsdp-full-mb1x1", "buckets") == pytest.approx(2 * root + 2 * 2 * encoder)
    assert living("bf16-fsdp-full-mb1x1", "gathered units") == pytest.approx(2 * (root + encoder))


def test_deepspeed_before_2026_by_hand() -> None:
    shape, vocabulary = shape_of(LLAMA_2_7B, None), 32_000 * 4096
    stage_3 = replace(_recipe("bf16-z3-none-mb1x8"), weight_shards=8)
    offload = _recipe("bf16-z2-full-mb1x8-oopt")

    def gathered(recipe: Recipe) -> float:
        terms = buffer_terms(shape, recipe, CLEAN)
        return sum(term.bytes for term in terms if term.name == "gathered units" and LOSS in term.phases)

    # Products of torch's own keep gathered weights for the backward pass, all but the embedding and the last norm.
    few, kept = gathered(stage_3), replace(stage_3, keeps_gathered=True)
    # The head is gathered a second time.
    assert gathered(kept) == pytest.approx(2 * (P - vocabulary - 4096) + 2 * vocabulary)
    # What is recomputed is gathered anew: the head alone is kept beside the live parameters.
    assert gathered(replace(kept, checkpointing=FULL)) == few + 2 * vocabulary
    # Offloaded master weights come back in fp32, and weights are not flattened on the GPU.
    older = replace(offload, older_deepspeed=True)
    assert [term.bytes for term in step_transients(shape, older)] == [4.0 * P / offload.state_shards]
    assert step_transients(shape, offload) == []
    assert building_terms(shape, offload, []) != []
    assert building_terms(shape, older, []) == []


def test_relative_positions_bias_every_score() -> None:
    t5 = shape_of(from_hf_config({"model_type": "t5", "num_layers": 6, "num_decoder_layers": 2}), None)
    each = 2 * 8 * 4096 * 4096  # of 8 heads in 2 bytes, for all rows

    def biases(plan: str, attention: Attention = Attention.FLASH) -> list[float]:
        terms = activation_terms(t5, replace(_recipe(plan), attention=attention), CLEAN)
        return [term.bytes / each for term in terms if "biases" in term.template and BACKWARD in term.phases]

    # One of each stack, and one of each layer with the mask; going back, a gradient and the sum of those before.
    assert biases("bf16-z2-none-mb1x8") == [2 + 8, 2]
    # Checkpointed layers join theirs with the mask anew; layers that make scores add it to them, which keeps nothing.
    assert biases("bf16-z2-full-mb1x8") == [2, 3]
    assert biases("bf16-z2-every4-mb1x8") == [2, 6]
    assert biases("bf16-z2-none-mb1x8", attention=Attention.EAGER) == [2, 2]
    bare = activation_terms(shape_of(LLAMA_2_7B, None), _recipe("bf16-z2-none-mb1x8"), CLEAN)
    assert not any("biases" in term.template for term in bare)


def test_a_dropped_feed_forward_has_a_mask() -> None:
    t5, recipe = shape_of(from_hf_config({"model_type": "t5"}), None), _recipe("bf16-z2-none-mb1x8")
    assert layer_bytes(t5, recipe).masks == 2 * 512 + 2048
    assert layer_bytes(replace(t5, ffn_dropout=0.0), recipe).masks == 2 * 512


def test_quantized_base_takes_half_a_byte_and_its_scales() -> None:
    workload = Workload(LLAMA_2_7B, H100, 8, 4096, adapter=Adapter(16, ("q_proj", "v_proj"), "nf4"))
    # 6,476,005,376 matrix elements at 0.5625 bytes, the other 262,410,240 at 4: peft upcasts them, and with them the
    # hidden states between layers.
    quantized, others, plan = 6_476_005_376 * 0.5625, 262_410_240, "bf16-ddp-full-mb1x8"
    assert _bytes(plan, "weights", "loss", workload) == pytest.approx(quantized + 4 * others)
    assert _bytes(plan, "activations", "backward", workload) == 32 * 4096 * 4 * 4096
    # Our engine and DeepSpeed cast both back.
    for case, asked in ((plan, replace(workload, casts_frozen=True)), ("bf16-z2-full-mb1x8", workload)):
        assert _bytes(case, "weights", "loss", asked) == pytest.approx(quantized + 2 * others)
        assert _bytes(case, "activations", "backward", asked) == 32 * 4096 * 2 * 4096
    # 32 layers x 2 projections x 16 x (4096 + 4096) learn, with two fp32 moments.
    assert _bytes("bf16-ddp-full-mb1x8", "optimizer states", "step", workload) == pytest.approx(8 * 8_388_608)


def test_the_scales_of_a_quantized_base_are_whole_on_each_rank() -> None:
    # FSDP shards and offloads parameters; an absmax (4 bytes for 64 weights) is an attribute beside one.
    adapter = Adapter(16, ("q_proj", "v_proj"), "nf4")
    workload = Workload(LLAMA_2_7B, H100, 8, 4096, gpus_per_node=8, adapter=adapter)
    quantized, scales = 6_476_005_376, 6_476_005_376 / 16
    expected = (quantized * 0.5 + 262_410_240 * 2) / 8 + scales
    assert _bytes("bf16-fsdp-full-mb1x1", "weights", "loss", workload) == pytest.approx(expected)
    assert _bytes("bf16-fsdp-full-mb1x1-oparam", "weights", "loss", workload) == pytest.approx(scales)
    # Nor do they travel with a unit: the root in bf16, and two layers of half a byte.
    root, layer = 2 * 32000 * 4096 + 4096, 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    unpacked = 2 * 4096 * 11008
    found = _bytes("bf16-fsdp-full-mb1x1", "gathered units", "forward", workload)
    assert found == pytest.approx(2 * root + 2 * 0.5 * layer + unpacked)
    # Double quantization holds them in a byte for 64 weights, and 4 bytes for 256 of those.
    assert SCALE_BYTES["nf4-dq"] == 1 / 64 + 4 / 16384


def test_stage_3_shards_a_model_that_was_whole() -> None:
    # 13B on 64 GPUs: 26 GB in bf16 before they are sharded, when weights, masters and gradients have 8 x 13B / 64, and
    # a bucket; the optimizer makes its states in the first step.
    llama = replace(LLAMA_2_7B, hidden_size=5120, layers=40, heads=40, kv_heads=40, ffn_size=13824)
    few = Workload(llama, H100, 64, 128, nodes=8, gpus_per_node=8)
    total = shape_of(llama, None).total
    whole = replace(few, builds_whole=True)
    plan, finer = "bf16-z3-full-mb1x1", "bf16-z3-full-mb1x1-bk50m"

    def at_start(workload: Workload, plan: str = plan) -> float:
        terms = Predictor(workload).explain(Plan.parse(plan))
        return sum(term.bytes for term in terms if "init" in term.phase_names and term.name not in _NOT_THE_MODELS)

    assert at_start(few) == pytest.approx(8 * total / 64 + 1e9)
    assert at_start(whole) == at_start(whole, finer) == pytest.approx(2 * total)
    prediction = Predictor(whole).predict(Plan.parse(plan))
    assert prediction.peak_phase == "init"
    assert prediction.allocated.expected > 2 * total
    # Offloaded parameters begin on the GPU as well; other stages and libraries shard nothing that was whole.
    assert at_start(whole, "bf16-z3-full-mb1x1-oparam") == pytest.approx(2 * total)
    for other in ("bf16-z2-full-mb1x1", "bf16-fsdp-full-mb1x1"):
        assert at_start(whole, other) == at_start(few, other)
    # A single rank shares its states with none: they are more than the model.
    alone = replace(whole, nodes=1, gpus_per_node=1)
    assert at_start(alone) == pytest.approx(8 * total + 1e9)
    base = replace(whole, adapter=Adapter(16, ("q_proj", "v_proj")))
    assert at_start(base) == pytest.approx(2 * total)


@pytest.mark.parametrize(
    ("plan", "ranks", "per_parameter"),
    [
        ("fp32-ddp-none-mb4x1", 1, 4 + 4),  # the reducer has its buckets from the start
        ("bf16-z2-none-mb4x1", 8, 2 + 2),  # whole, and copied into a flat tensor
    ],
)
def test_building_takes_the_memory_of_an_emulated_gpu(plan: str, ranks: int, per_parameter: int) -> None:
    workload = Workload(LLAMA_2_7B, H100, 4 * ranks, 128, gpus_per_node=ranks)
    terms = Predictor(workload).explain(Plan.parse(plan))
    found = sum(term.bytes for term in terms if "init" in term.phase_names and term.name not in _NOT_THE_MODELS)
    assert found == pytest.approx(per_parameter * shape_of(LLAMA_2_7B, None).total, rel=1e-3)


def test_foreach_steps_need_a_copy_and_fused_ones_none() -> None:
    assert _bytes("bf16-fsdp-full-mb1x8", "step transients", "step") == 0
    assert _bytes("bf16-fsdp-full-mb1x8-foreach", "step transients", "step") == pytest.approx(4 * P / 8)


def test_deepspeed_steps_on_flat_fp32_gradients() -> None:
    # Stages 1 to 3 flatten the rank's gradients first (stage_1_and_2.py, step; stage3.py, _prepare_fp32_grad...), stage
    # 3 sub-group by sub-group, on a single GPU as on many.
    assert _bytes("bf16-z2-full-mb1x8", "step transients", "step") == pytest.approx((2 + 4) * P / 8)
    assert _bytes("fp32-z2-full-mb1x8", "step transients", "step") == pytest.approx(4 * P / 8)
    assert _bytes("bf16-z0-full-mb1x8", "step transients", "step") == pytest.approx(4 * P)
    assert _bytes("fp32-z0-full-mb1x8", "step transients", "step") == 0
    alone = Workload(LLAMA_2_7B, H100, 8, 4096)
    assert _bytes("bf16-z3-full-mb1x8", "step transients", "step", alone) == (2 + 4) * 1e9


def test_stage_3_has_its_gradients_from_the_start() -> None:
    # stage3.py, grad_partitions_flat_buffer.
    phases = ("init", "forward", "loss", "backward", "evaluation")
    assert [_bytes("bf16-z3-full-mb8x1", "gradients", phase) for phase in phases] == pytest.approx([2 * P / 8] * 5)
    assert _bytes("bf16-z3-full-mb8x1-oopt", "gradients", "loss") == 0


def test_generation_needs_a_kv_cache_and_kept_logits_cost() -> None:
    def evaluation(evaluation: Evaluation) -> float:
        workload = Workload(LLAMA_2_7B, H100, 8, 4096, evaluation=evaluation)
        return _bytes("bf16-z0-full-mb1x8", "evaluation", "evaluation", workload)

    plain = evaluation(Evaluation(2))
    # 2 x 32 layers x 4096 x 2 bytes x 8192 tokens.
    assert evaluation(Evaluation(2, generates=True)) - plain == pytest.approx(2 * 32 * 4096 * 2 * 8192)
    # 16 sequences of 1,000 tokens are 63 pages of 16 tokens each.
    more = Evaluation(2, generates=True, concurrent_sequences=16, sequence_tokens=1000)
    assert evaluation(more) - plain == pytest.approx(2 * 32 * 4096 * 2 * 16 * 63 * 16)
    assert evaluation(Evaluation(2, keeps_logits=True)) - plain == pytest.approx(8 * 8192 * 32000)
    # Eager scores of one layer are more than the logits from a sequence of 40,000 on, or where there are none.
    workload = Workload(LLAMA_2_7B, H100, 8, 65536, evaluation=Evaluation(1))
    eager, flash = (_bytes(f"bf16-z0-full-mb1x8{end}", "evaluation", "evaluation", workload) for end in ("-eager", ""))
    assert eager - flash == pytest.approx(65536 * (8 * 32 * 65536 - 10 * 32000))


def test_an_encoder_decoder_keeps_its_cross_attention_and_the_encoders_output() -> None:
    t5 = Architecture(
        "t5", Kind.ENCODER_DECODER, 512, 6, 8, 8, 64, 2048, 32128, gated_ffn=False, encoder_layers=4, hidden_dropout=0.1
    )  # fmt: skip
    recipe = _recipe("bf16-z0-none-mb1x8", Workload(t5, H100, 8, 1000))
    # Per token: two eager RMSNorms of (4 + 2 + 2) h and 2 h of T5's own input; q, k, v, out and 4 bytes a head; before
    # and after the activation; a byte for each of two masks.
    plain = 2 * 10 * 512 + (4 * 2 * 512 + 4 * 8) + 2 * 2 * 2048 + 2 * 512
    # Cross-attention has all of that once more but the feed-forward and its norm and mask.
    cross = 10 * 512 + (4 * 2 * 512 + 4 * 8) + 512
    output = 2 * 512

    def kept(recipe: Recipe, phase: str, name: str = "activations") -> float:
        terms = activation_terms(shape_of(t5, None), recipe, replace(CLEAN, backward_factor=0.0))
        return sum(term.bytes for term in terms if term.name == name and phase in term.phase_names)

    assert kept(recipe, "backward") == pytest.approx(1000 * (10 * plain + 6 * cross + output))
    assert kept(recipe, "backward", "layer in backward") == pytest.approx(1000 * output)
    full = replace(recipe, checkpointing=FULL)
    # A hidden state of each of the ten layers, and in the backward pass a whole decoder layer and the gradient of the
    # encoder's output.
    assert kept(full, "backward") == pytest.approx(1000 * (10 * 2 * 512 + output))
    assert kept(full, "backward", "layer in backward") == pytest.approx(1000 * (plain + cross + output))
    # Selective: of q, k, v, o it keeps q and v, and the attention's output.
    selective = replace(recipe, checkpointing=SELECTIVE)
    added = 1000 * (6 * (2 * 3 * 512 + 4 * 8) + output)
    assert kept(selective, "backward") == pytest.approx(1000 * 10 * (2 * (4 * 512 + 2048 + 512) + 4 * 8) + added)


def test_explain_and_predict_agree() -> None:
    predictor = Predictor(Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8, evaluation=Evaluation(4)))
    for text in ("bf16-z3-full-mb4x2", "bf16-ddp-none-mb1x8", "bf16-fsdp-sel-mb2x4", "fp16-z1-every4-mb8x1-eager"):
        plan = Plan.parse(text)
        terms, predicted = predictor.explain(plan), predictor.predict(plan)
        inside = [term for term in terms if term.name not in ("context", "nccl")]
        totals = {name: sum(t.bytes for t in inside if name in t.phase_names) for name in PHASES}
        assert max(totals.values()) == pytest.approx(predicted.requested.expected)
        assert max(totals, key=lambda name: totals[name]) == predicted.peak_phase
        assert all(term.formula and term.source for term in terms)
        parts = sum(component.bytes.expected for component in predicted.components)
        assert parts == pytest.approx(predicted.device.expected)


def test_the_gradients_of_fsdps_root_wait_for_that_of_the_embedding() -> None:
    # While activations are there only the head's: 32000 x 4096; then the embedding's and the last norm's, too.
    root, layer = 2 * 32000 * 4096 + 4096, 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    found = [_bytes("bf16-fsdp-full-mb1x8", "buckets", phase) for phase in ("loss", "backward", "reduce")]
    assert found == pytest.approx([0, 2 * (32000 * 4096 + 2 * layer), 2 * (root + 2 * layer)])


def test_a_single_rank_of_fsdp_copies_its_units_too() -> None:
    alone = Workload(LLAMA_2_7B, H100, 8, 4096)
    root, layer = 2 * 32000 * 4096 + 4096, 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert _bytes("bf16-fsdp-full-mb1x8", "gathered units", "loss", alone) == pytest.approx(2 * (root + layer))
    assert _bytes("bf16-fsdpsgo-full-mb1x8", "gathered units", "loss", alone) == pytest.approx(2 * P)
    assert _bytes("bf16-ddp-full-mb1x8", "gathered units", "loss", alone) == 0


def test_shard_grad_op_keeps_every_unit_gathered_until_its_backward_pass() -> None:
    # All weights in bf16 from the end of the forward pass on; resharded layer by layer in the backward pass.
    assert _bytes("bf16-fsdpsgo-full-mb1x8", "gathered units", "loss") == pytest.approx(2 * P)
    # The root holds embedding, last norm and head; a layer 4 x 4096^2 + 3 x 4096 x 11008 weights and two norms.
    root, layer = 2 * 32000 * 4096 + 4096, 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    few = 2 * (root + 2 * layer)
    assert _bytes("bf16-fsdpsgo-full-mb1x8", "gathered units", "reduce") == pytest.approx(few)
    assert _bytes("bf16-fsdp-full-mb1x8", "gathered units", "forward") == pytest.approx(few)


@pytest.mark.parametrize("head", [Head.CLASSIFIER, Head.NONE])
def test_a_classifier_has_no_logits_of_the_vocabulary(head: Head) -> None:
    bert = Architecture("bert", Kind.ENCODER, 768, 12, 12, 12, 64, 3072, 30522, gated_ffn=False, head=head)
    workload = Workload(bert, H100, 32, 512, evaluation=Evaluation(4))
    assert _bytes("bf16-ddp-none-mb32x1", "logits", "loss", workload) == 0
    # Of an evaluation batch only its hidden states and the widest feed-forward stay: 2 x 3072 + 4 x 768 a token.
    evaluated = 4 * 512 * 2 * (2 * 3072 + 4 * 768)
    assert _bytes("bf16-ddp-none-mb32x1", "evaluation", "evaluation", workload) == pytest.approx(evaluated)


def test_fp32_keeps_a_second_copy_of_its_weights_from_stage_1_on() -> None:
    # stage_1_and_2.py clones the partition whatever its dtype; so does stage3.py, which compares devices with strings.
    found = [_bytes(f"fp32-z{stage}-full-mb1x8-sdpa", "master weights", "step") for stage in range(4)]
    assert found == pytest.approx([0, 4 * P / 8, 4 * P / 8, 4 * P / 8])


def test_fsdp_offloads_weights_gradients_and_states_together() -> None:
    # torch.distributed.fsdp.CPUOffloadPolicy knows one offload.
    names = ("weights", "gradients", "optimizer states", "step transients")
    assert [_bytes("bf16-fsdp-full-mb1x8-oparam", name, "step") for name in names] == [0, 0, 0, 0]


def test_a_gpu_that_is_behind_still_has_weights_that_stage_3_has_released() -> None:
    workload = Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8)

    def behind(plan: str, **changes: Any) -> float:
        recipe, shape = replace(lower(workload, Plan.parse(plan)), **changes), shape_of(LLAMA_2_7B, None)
        return bytes_behind(shape, recipe, buffer_terms(shape, recipe, CLEAN))

    # All weights in 16 bits, less the billion that is live.
    assert behind("bf16-z3-full-mb1x8") == pytest.approx(2 * (P - 1e9))
    # The layers that torch's own products keep are live, and the head is gathered twice. The last norm remains.
    assert behind("bf16-z3-none-mb1x8", keeps_gathered=True) == 2 * 4096
    # Without shards nothing is gathered; FSDP2 waits. Weights come from the host more slowly than they are used.
    others = [("bf16-z3-full-mb1x8", {"weight_shards": 1}), ("bf16-z2-full-mb1x8", {}), ("bf16-fsdp-full-mb1x8", {})]
    assert [behind(plan, **changes) for plan, changes in others] == [0, 0, 0]
    assert behind("bf16-z3-full-mb1x8", offloads_weights=True) == 0


def test_what_is_behind_is_expected_in_the_middle_until_a_run_was_measured() -> None:
    workload, plan = Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8), Plan.parse("bf16-z3-full-mb1x8")
    plain, prior = Predictor(workload), Predictor(workload).belief
    known = Predictor(workload, Calibration(prior.measured(), None)).predict(plan)
    found = plain.predict(plan)
    assert found.reserved.expected - known.reserved.expected == pytest.approx(P - 1e9)
    # Half of that again is nearly the whole; allocated and needed bytes have none of it.
    assert plain.unsure_bytes(plan) > 0.9 * (P - 1e9)
    assert found.reserved.upper - found.reserved.expected > 0.9 * (P - 1e9)
    assert (found.allocated.expected, found.needed.expected) == (known.allocated.expected, known.needed.expected)
    # A run that took what is expected without changes nothing.
    measured = Measurement(plan, round(known.allocated.expected), round(known.reserved.expected))
    again = Predictor(workload, calibrate(workload, [measured])).predict(plan)
    assert again.reserved.expected == pytest.approx(known.reserved.expected, rel=1e-3)


def test_fsdp1_has_gradients_that_it_offloads_on_the_gpu_until_the_backward_pass_ends() -> None:
    """The emulated GPU has 128 MiB of shards more than FSDP2 on two ranks with 64 Mi weights, until that end."""
    shape, recipe = shape_of(LLAMA_2_7B, None), lower(
        Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8), Plan.parse("fp32-fsdp-full-mb1x8-oparam")
    )  # fmt: skip
    late = shape.root + shape.layer
    for keeps, found in ((False, [0, 0, 0]), (True, [4 * (P - late) / 8, 4 * P / 8, 0])):
        terms = state_terms(shape, replace(recipe, keeps_reduced=keeps))
        gradients = [term for term in terms if term.name == "gradients"]
        phases = ("first layer", "reduce", "step")
        kept = [sum(term.bytes for term in gradients if phase in term.phase_names) for phase in phases]
        assert kept == pytest.approx(found)


def test_an_adapter_larger_than_its_base_is_one_all_the_same() -> None:
    # Of rank 4096 the two matrices of a square projection hold twice what it does. The base stays frozen in bf16.
    adapter = Adapter(4096, ("all-linear",))
    workload = Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8, adapter=adapter)
    learning = 32 * 4096 * (4 * (4096 + 4096) + 3 * (4096 + 11008))
    assert learning > P
    assert _bytes("bf16-z1-full-mb1x8", "weights", "step", workload) == pytest.approx(2 * P)
    assert _bytes("bf16-z1-full-mb1x8", "adapter", "step", workload) == pytest.approx(2 * learning)
