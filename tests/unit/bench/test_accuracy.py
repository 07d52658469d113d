"""The pure parts of the accuracy benchmark: its bound, its parsing of rows, and its fairness."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import accuracy
import accuracy_device
import pytest
from accuracy_cells import METRICS, Cells
from accuracy_fit import START, fit, predicted
from accuracy_rows import Row, read_row, read_rows, source_project

from memtune.gpus.gpu import GPUS
from memtune.memory.constants import DEFAULT_CONSTANTS, Constants
from memtune.memory.formulas.activations import activation_terms
from memtune.memory.formulas.logits_and_buffers import buffer_terms, step_transients
from memtune.memory.formulas.states import state_terms
from memtune.memory.formulas.terms import ALWAYS, FIRST_LAYER, FORWARD, LOSS, REDUCE, REDUCING
from memtune.plans.knobs import Attention, Checkpointing
from memtune.units import GIB, MIB

LLAMA = {
    "id": "one", "model": "llama2-7b", "params_b": "6.74", "hidden": "4096", "layers": "32", "heads": "32",
    "kv_heads": "32", "ffn": "11008", "vocab": "32000", "tied": "no", "seq_len": "2048", "micro_batch": "1",
    "weight_dtype": "bf16", "compute_dtype": "bf16", "grad_dtype": "bf16", "optimizer_name": "adamw",
    "state_dtype": "bf16", "checkpointing": "full", "framework": "none", "attention_kind": "flash",
    "metric": "allocated", "peak_bytes": str(60 * GIB), "quality": "A", "source": "owner/project file.md@abc",
}  # fmt: skip


def row(**changes: str) -> Row:
    return read_row(Cells({**LLAMA, **changes}))


@pytest.mark.parametrize(
    ("hits", "trials", "bound"),
    # The 95% quantile of the beta distribution with hits + 1 and trials - hits.
    [(0, 10, 0.2589), (1, 10, 0.3942), (5, 102, 0.1003), (10, 10, 1.0)],
)
def test_the_binomial_bound_is_clopper_and_pearsons(hits: int, trials: int, bound: float) -> None:
    assert accuracy.binomial_upper(hits, trials) == pytest.approx(bound, abs=5e-5)


def test_quantiles_are_interpolated() -> None:
    assert accuracy.quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert accuracy.quantile([1.0], 0.9) == 1.0


def test_a_gated_feed_forward_that_is_as_wide_as_a_plain_one() -> None:
    # 24 x (4 x 1,024 x 1,024 + 3 x 1,024 x 4,096) + 2 x 10,000 x 1,024 parameters: as many as with heads of 128 and a
    # plain feed-forward.
    sizes = {"params_b": "0.4231", "hidden": "1024", "layers": "24", "heads": "16", "kv_heads": "16", "ffn": "4096"}
    kept = [row(**sizes, vocab="10000", notes=notes).shape.key_value for notes in ("", "gated feed-forward")]
    assert kept == [2 * 1024, 1024]


def test_a_row_is_read_as_it_is_written() -> None:
    read = row()
    assert read.shape.total == 6_738_415_616
    assert read.recipe.checkpointing == Checkpointing("full")
    # Two bf16 moments.
    assert read.recipe.state_bytes == 4
    # It does not say whether gradients accumulate.
    assert read.recipe.unknown_inputs == 1
    assert row(notes="grad accum 1").recipe.unknown_inputs == 0
    assert row(checkpointing="every-4").recipe.checkpointing == Checkpointing("every", 4)
    assert row(attention_kind="eager").recipe.attention is Attention.EAGER
    # Its family caps the scores, which only a kernel that materializes them can do.
    assert row(model="google/gemma-2-9b").recipe.attention is Attention.EAGER
    assert row(model="google/gemma-2b").recipe.attention is Attention.FLASH


def test_some_families_have_norms_of_queries_and_keys() -> None:
    qwen_2, qwen_3 = (row(model=name).shape for name in ("qwen2-7b", "Qwen/Qwen3-8B"))
    assert (qwen_2.query_key_norm, qwen_3.query_key_norm) == (False, True)


def test_transformers_writes_out_the_activation_of_gpt_2() -> None:
    own, of_transformers = (row(model="gpt2-xl", notes=notes).shape for notes in ("", "transformers' model"))
    assert (own.activation_tensors, of_transformers.activation_tensors) == (2, 5)


def test_the_dropout_of_a_model_is_that_of_its_family_unless_the_notes_say_another() -> None:
    dropouts = [
        (shape.hidden_dropout, shape.attention_dropout)
        for model, notes in (
            ("gpt2-xl", ""),
            ("llama-2-7b", ""),
            ("llama-2-7b", "grad accum 1; dropout 0.1, the default"),
        )
        for shape in [row(model=model, notes=notes).shape]
    ]
    assert dropouts == [(0.1, 0.1), (0.0, 0.0), (0.1, 0.1)]


def test_a_fused_loss_makes_as_many_parts_of_the_logits_as_its_program_does() -> None:
    def parts(notes: str, vocabulary: str = "128256") -> float:
        return row(notes=notes, hidden="4096", vocab=vocabulary, micro_batch="2", seq_len="3000").recipe.loss_chunks

    assert parts("fused-linear head of chunks of 2,004 entries of the vocabulary") == 64
    assert parts("fused-linear: 250 tokens at a time") == 24
    # Liger's: 6,000 tokens over 128,256 / 4,096 = 32 parts are 188 tokens, and so 256.
    assert parts("fused-linear") == 6000 / 256
    # With a vocabulary as small as the hidden size, 8,192 tokens would be one part.
    assert parts("fused-linear", "4000") == 1


def test_an_adapter_of_a_fused_module_reads_it_once() -> None:
    adapter = {"lora_rank": "8", "lora_targets": "q,v,o", "lora_dropout": "0.05"}
    apart, fused = row(**adapter).shape, row(**adapter, notes="truncation cap; fused qkv").shape
    assert (apart.adapter_reads, fused.adapter_reads) == (3 * 4096, 2 * 4096)
    assert apart.adapter_dropout == fused.adapter_dropout == 0.05


def test_empty_cells_take_defaults_and_widen() -> None:
    read = row(hidden="", layers="", heads="", kv_heads="", ffn="", attention_kind="", seq_len="")
    assert read.recipe.sequence_length == 2048
    # The published count is kept, whatever the guessed dimensions give.
    assert read.shape.total == pytest.approx(6.74e9, rel=0.03)
    assert read.recipe.unknown_inputs == 4
    assert predicted(read, Constants()).width > predicted(row(), Constants()).width


@pytest.mark.parametrize(
    "column",
    [
        *("hidden", "layers", "heads", "ffn", "vocab", "seq_len", "micro_batch", "checkpointing", "attention_kind"),
        *("weight_dtype", "compute_dtype", "optimizer_name", "state_dtype", "framework"),
    ],
)
def test_every_empty_cell_that_memory_depends_on_is_an_unknown(column: str) -> None:
    assert row(**{column: ""}).recipe.unknown_inputs == 1 + row().recipe.unknown_inputs


def test_unknown_words_are_reported_and_widen_the_interval() -> None:
    cells = Cells({**LLAMA, "framework": "megatron", "optimizer_name": "galore", "weight_dtype": "int3"})
    read = read_row(cells)
    assert cells.remarks == [
        "weight_dtype 'int3' is unknown and taken as 2",
        "optimizer_name 'galore' is unknown and taken as 'adamw'",
        "framework 'megatron' is unknown and taken as 'none'",
    ]
    assert read.recipe.unknown_inputs == 4


def test_the_version_of_transformers_decides_what_its_loss_upcasts() -> None:
    for model, notes, upcasts in (
        ("gpt_bigcode-santacoder", "grad accum 1; transformers 4.48.1", False),
        ("gpt_bigcode-santacoder", "transformers 4.49.0", True),
        ("gpt_bigcode-santacoder", "", True),
        ("llama-2-7b", "transformers 4.48.1", True),
    ):
        assert row(model=model, notes=notes).recipe.upcasts_loss == upcasts, (model, notes)


@pytest.mark.parametrize(
    ("notes", "changes"),
    [
        ("loss in 16 bits", {"upcasts_loss": False}),
        ("softmax in 16 bits", {"upcasts_scores": False}),
        ("whose attention and softmax are written out", {"writes_softmax": True}),
        ("compiled loss", {"compiles_loss": True}),
        ("shifted logits; outputs dropped", {"shifts_logits": True, "drops_outputs": True}),
        ("transformers' Trainer", {"drops_outputs": True}),
        ("transformers' model", {"counts_layers": True}),
        ("Liger's norm, rotation and feed-forward", {"liger_layers": True, "counts_layers": True}),
        ("loss of all logits by torch, which autocast upcasts", {"autocasts_loss": True}),
        ("CE kernels", {"loss_kernel_bytes": 6.0}),
        ("CE kernels: Megatron's own keeps a softmax in fp32, in place", {"loss_kernel_bytes": 4.0}),
        ("CE kernels: TransformerEngine's, in place", {"loss_kernel_bytes": 0.0}),
        ("torch's RMSNorm; torch 2.11.0", {"fused_norms": True}),
        ("torch's RMSNorm; torch 2.7.1", {}),
        ("transformers 4.48.1", {"shifts_logits": True}),
        ("transformers 4.45.0", {"shifts_logits": True, "returns_fp32_logits": True}),
        ("lengths vary", {"varying_lengths": True}),
        ("deferred reduction, reduced in fp32", {"defers_reduction": True, "reduce_bytes": 4}),
        ("whole logits, whole embedding", {"whole_logits": True, "whole_embedding": True}),
        ("gradients in a buffer", {"accumulates": True}),
        ("grad accum 1; gradients live through the forward pass", {"accumulates": True}),
        ("gathers run ahead", {"keeps_gathered": True}),
        ("pure bf16 without autocast", {"without_autocast": True}),
        ("chunked_nll of TRL 1.12.0", {"widens_head": True}),
        ("chunked_nll of TRL 1.13.0", {}),
        ("units stay gathered until their backward pass", {"keeps_gathered": True}),
        ("master weights in 16 bits", {"master_bytes": 2}),
        ("frozen and trained weights share units", {"mixes_units": True}),
        ("context and kernels of 600 MB measured", {"context_bytes": 600 * MIB}),
        ("561 MB that the driver keeps", {"context_bytes": 1061 * MIB}),
    ],
)
def test_notes_describe_a_program(notes: str, changes: dict[str, Any]) -> None:
    plain = row(notes="grad accum 1").recipe
    assert row(notes=f"grad accum 1; {notes}").recipe == replace(plain, **changes)


def test_ligers_loss_differentiates_in_place_of_its_logits_in_releases_that_are_told() -> None:
    for notes, differentiates in (
        ("fused-linear: Liger's own; Liger 0.8.0", True),
        ("fused-linear: Liger's own; Liger 0.4.0", False),
        ("fused-linear: Liger's own", False),
        ("fused-linear: chunked_nll; Liger 0.8.0", False),
    ):
        recipe = row(notes=notes).recipe
        expected = (True, 0.0) if differentiates else (False, None)
        assert (recipe.loss_differentiates, recipe.loss_kernel_bytes) == expected, notes


def test_fsdp_reduces_in_the_format_that_the_notes_name() -> None:
    wide = {"weight_dtype": "fp32", "grad_dtype": "fp32", "framework": "fsdp"}
    for notes, reduced in (("reduced in bf16", 2), ("reduced in fp32", 4), ("", 4)):
        assert row(**wide, notes=notes).recipe.reduce_bytes == reduced


def test_layers_of_transformer_engine_fuse_norms_and_activations() -> None:
    for attention in ("transformer engine", "flash (TransformerEngine)"):
        assert row(attention=attention).recipe == replace(row().recipe, fused_norms=True, fused_activation=True)


def test_a_gated_model_has_layer_norms_if_the_notes_say_so() -> None:
    plain, stated = row().shape, row(notes="LayerNorm without biases").shape
    assert [(shape.gated, shape.rms_norm) for shape in (plain, stated)] == [(True, True), (True, False)]


def test_a_loss_beside_a_compiled_model_is_compiled_unless_the_notes_say_otherwise() -> None:
    assert row(compiled="yes").recipe.compiles_loss
    assert not row(compiled="yes", notes="the loss is not compiled").recipe.compiles_loss


def test_buckets_that_transformers_fills_in_have_the_square_of_the_hidden_size() -> None:
    sharded = {"framework": "deepspeed", "zero_stage": "2", "shard_world": "8"}
    assert row(**sharded, notes="auto buckets").recipe.bucket_elements == 4096**2
    stated = row(**sharded, notes="buckets of 50000000 elements").recipe
    # What stage 3 keeps gathered has a limit of its own.
    assert (stated.bucket_elements, stated.live_elements) == (50_000_000, 1_000_000_000)
    assert row(**sharded).recipe.bucket_elements == 500_000_000


def test_the_step_of_an_older_torch_has_two_lists() -> None:
    """Before pytorch#104780 AdamW added epsilon to a copy of the roots; torch 1.13 took one weight at a time."""
    lists = [("torch 2.0.1", 2), ("PyTorch 2.0", 2), ("torch 2.1 of June 2023", 2), ("torch 2.1.2", 1), ("", 1)]
    for notes, copies in lists:
        assert row(fused_step="no", state_dtype="fp32", notes=notes).recipe.foreach_bytes == copies * 4, notes
    assert row(fused_step="yes", notes="torch 2.0.1").recipe.foreach_bytes == 0


def test_only_fsdp1_keeps_offloaded_gradients() -> None:
    sharded = {"zero_stage": "3", "shard_world": "8"}
    kept = [row(framework=name, **sharded).recipe.keeps_reduced for name in ("fsdp", "fsdp2", "deepspeed")]
    assert kept == [True, False, False]


def test_deepspeed_is_older_than_2026_unless_the_notes_say_otherwise() -> None:
    sharded = {"framework": "deepspeed", "zero_stage": "3", "shard_world": "8"}
    older = row(**sharded, notes="built whole").recipe
    newer = row(**sharded, notes="built whole; DeepSpeed of 2026").recipe
    assert (older.older_deepspeed, older.keeps_gathered) == (True, True)
    # Of a checkpointed model, 0.18 does not keep the head.
    of_2025 = [row(**sharded, checkpointing=mode, notes="built whole; DeepSpeed 0.18.7") for mode in ("none", "full")]
    assert [each.recipe.keeps_gathered for each in of_2025] == [True, False]
    assert (newer.older_deepspeed, newer.keeps_gathered) == (False, False)


def test_sixteen_bit_master_weights_by_hand() -> None:
    sharded = {"framework": "deepspeed", "zero_stage": "3", "shard_world": "8", "n_gpus": "8", "cp": "8"}
    narrow = row(**sharded, micro_batch="2", seq_len="32768", notes="master weights in 16 bits")
    wide = row(**sharded, fp32_master="yes")
    part = 6_738_415_616 / 8

    def of_master(read: Row) -> list[float]:
        terms = (*state_terms(read.shape, read.recipe), *step_transients(read.shape, read.recipe))
        return [term.bytes for term in terms if term.name in ("master weights", "step transients")]

    # Each rank copies its eighth; its gradients are flattened, and widened only for wider master weights
    # (deepspeed stage3.py, _create_fp32_partitions and _prepare_fp32_grad_for_sub_group).
    assert of_master(narrow) == [2 * part, 2 * part]
    assert of_master(wide) == [4 * part, (2 + 4) * part]
    # Ulysses leaves each rank 2 x 32,768 / 8 tokens, and gradients are reduced in fp32 (deepspeed engine.py).
    assert narrow.recipe.tokens == 8192
    terms = buffer_terms(narrow.shape, narrow.recipe, DEFAULT_CONSTANTS)
    assert 4 * 5e8 in [term.bytes for term in terms if term.name == "buckets" and term.phases == ALWAYS]


@pytest.mark.parametrize(
    ("stage", "gpus", "notes", "phases"),
    [
        ("0", "1", "", ()),
        ("0", "8", "", (REDUCE,)),
        ("1", "8", "grad accum 4", (FORWARD, LOSS, *REDUCING)),
        ("1", "8", "", (LOSS, *REDUCING)),
        ("2", "1", "", (LOSS, *REDUCING)),
        ("2", "1", "DeepSpeed of 2026", REDUCING),
        ("3", "1", "", ALWAYS),
        ("3", "8", "grad accum 4", ALWAYS),
    ],
)
def test_deepspeed_has_the_buckets_of_its_stage(stage: str, gpus: str, notes: str, phases: tuple[int, ...]) -> None:
    row = {**LLAMA, "framework": "deepspeed", "zero_stage": stage, "shard_world": gpus, "n_gpus": gpus, "notes": notes}
    recipe = read_row(Cells(row)).recipe
    assert recipe.bucket_phases == phases
    assert recipe.older_deepspeed == (notes != "DeepSpeed of 2026")
    assert not recipe.keeps_gathered
    built = read_row(Cells({**row, "notes": "built whole"})).recipe
    assert built.builds_whole
    assert built.keeps_gathered == (stage == "3")


@pytest.mark.parametrize("word", ["overlap_comm", "contiguous gradients and overlapped communication"])
def test_two_buckets_take_turns_if_reduction_overlaps_the_backward_pass(word: str) -> None:
    # stage_1_and_2.py, "use double buffers"; stage3.py makes one buffer in any case. Each has 500 million elements.
    def buckets(stage: str, notes: str) -> float:
        read = row(framework="deepspeed", zero_stage=stage, shard_world="8", n_gpus="8", tied="no", notes=notes)
        terms = buffer_terms(read.shape, read.recipe, DEFAULT_CONSTANTS)
        return sum(term.bytes for term in terms if term.name == "buckets" and LOSS in term.phases)

    assert [buckets(stage, "") for stage in ("1", "2", "3")] == [1e9, 1e9, 1e9]
    assert [buckets(stage, word) for stage in ("1", "2", "3")] == [2e9, 2e9, 1e9]


def test_torchs_ring_attention_gathers_keys_and_values_by_hand() -> None:
    # 1,048,576 tokens over 8 GPUs. 32 heads of 128 have 18 bytes a query; keys and values are as many, and have 17
    # bytes and 2 for each of 8 ranks. Gate, up and their two results of 11,008 are free by then.
    ring = {"framework": "fsdp2", "zero_stage": "3", "shard_world": "8", "n_gpus": "8", "cp": "8", "seq_len": "1048576"}
    each = 18 * 4096 + (17 + 2 * 8) * 2 * 4096 - 4 * 2 * 11008
    for notes, is_there in (("ring attention over 8 GPUs", True), ("", False)):
        found = row(**ring, notes=notes)
        terms = activation_terms(found.shape, found.recipe, DEFAULT_CONSTANTS)
        assert (131072 * each in [term.bytes for term in terms if FIRST_LAYER in term.phases]) == is_there


def test_facts_in_notes_alone_are_read() -> None:
    assert not row(checkpointing="full").recipe.checkpoints_half
    assert row(checkpointing="full", notes="every second layer").recipe.checkpoints_half


def test_a_quantized_base_has_hidden_states_in_fp32_if_what_it_does_not_quantize_is_in_fp32() -> None:
    quantized = {"lora_rank": "8", "base_quant": "nf4"}
    assert row(**quantized, weight_dtype="fp32").recipe.fp32_residuals
    assert not row(**quantized).recipe.fp32_residuals


def test_transformers_leave_out_a_cap_of_scores_that_torch_s_attention_does_not_know() -> None:
    gemma = {"model": "gemma-2-9b", "attention_kind": "flash", "attention": "sdpa"}
    assert row(**gemma, notes="transformers' model").recipe.attention is Attention.SDPA
    assert row(**gemma).recipe.attention is Attention.EAGER
    assert row(**{**gemma, "attention_kind": "eager"}, notes="transformers' model").recipe.attention is Attention.EAGER


def test_other_words_for_the_same_thing() -> None:
    plain = row(lora_rank="8", lora_targets="q,v", base_quant="nf4")
    assert row(lora_rank="8", lora_targets="q_proj v_proj", base_quant="NF4").shape == plain.shape
    assert plain.shape.adapted == {"query", "value"}
    assert row(optimizer_name="adamw_bnb_8bit").recipe == row(optimizer_name="adamw-8bit").recipe
    assert row(optimizer_name="paged_adamw_8bit").recipe.state_bytes == 0
    assert row(model="someone/llama2-7b").family == "llama"


def test_an_encoder_decoder_is_known_by_its_name() -> None:
    t5 = row(
        model="google/flan-t5-base", params_b="0.248", hidden="768", layers="12", heads="12", kv_heads="12", ffn="2048",
        vocab="32128",
    )  # fmt: skip
    assert t5.shape.layers == 24
    assert t5.shape.crossed == 12


def test_a_vision_transformer_is_known_by_its_name() -> None:
    # 24 layers of 12 x 1,024 x 1,024, patches of 3 x 16 x 16 entries, and a place for each of 197 tokens.
    sizes = {"params_b": "0.3033", "hidden": "1024", "layers": "24", "heads": "16", "kv_heads": "16", "ffn": "4096"}
    vision = {"model": "vit-l-16", "vocab": "0", "seq_len": "197", "notes": "classification head"}
    shape = row(**sizes, **vision).shape
    assert (shape.vocab, shape.modulated, shape.layers) == (0, False, 24)
    assert shape.total == pytest.approx(303_300_000, rel=0.005)


def test_a_file_names_its_missing_cells(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = [LLAMA, {**LLAMA, "metric": "host"}, {**LLAMA, "peak_bytes": ""}, {**LLAMA, "framework": "colossal"}]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(LLAMA))
        writer.writeheader()
        writer.writerows(lines)
    rows, remarks = read_rows(path)
    assert len(rows) == 2
    assert [remark.removeprefix(f"{path}, ").split(":")[0] for remark in remarks] == ["line 3", "line 4", "line 5"]
    assert "left out: metric 'host'" in remarks[0]
    assert "framework 'colossal' is unknown" in remarks[2]


@pytest.mark.parametrize("metric", METRICS)
def test_each_row_is_compared_in_its_own_metric(metric: str) -> None:
    sizes = {other: predicted(row(metric=other), Constants()).expected for other in METRICS}
    assert predicted(row(metric=metric), Constants()).expected == sizes[metric]
    assert sizes["allocated"] == sizes["active"] < sizes["reserved"] < sizes["device"]


@pytest.mark.parametrize(
    ("written", "known"),
    [("RTX 3090 24GB", "rtx3090-24gb"), ("A100-SXM4-40GB", "a100-40gb"), ("H100", "h100-80gb"), ("A100", "")],
)
def test_a_gpu_is_known_however_its_source_writes_it(written: str, known: str) -> None:
    assert row(gpu=written).gpu_bytes == (GPUS[known].usable_bytes if known else 0)


def test_unneeded_reserved_memory_is_bounded_by_the_gpu() -> None:
    sizes = {"metric": "reserved", "vocab": "152064", "seq_len": "8192", "notes": "grad accum 1; lengths vary"}
    free, full = (predicted(row(gpu=gpu, **sizes), Constants()) for gpu in ("unknown", "L4 24GB"))
    allocated = predicted(row(gpu="L4 24GB", **{**sizes, "metric": "allocated"}), Constants())
    assert full.expected < free.expected
    # What is needed may still be more than the GPU has.
    assert full.expected > allocated.expected > GPUS["l4-24gb"].usable_bytes


def test_no_source_is_scored_with_constants_that_saw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    def remember(rows: Sequence[Row]) -> Constants:
        seen.append({each.source for each in rows})
        return Constants()

    monkeypatch.setattr(accuracy, "fit", remember)
    rows = [row(source=source) for source in ("a/one x", "b/two y", "https://github.com/c/three z", "d/one w")]
    scored, constants = accuracy.score(rows, leave_one_source_out=True)
    assert [each.row for each in scored] == rows
    # One project under two owners is one source.
    assert list(constants) == ["one", "three", "two"]
    assert seen == [{"three", "two"}, {"one", "two"}, {"one", "three"}]


def test_a_single_source_is_scored_with_the_initial_constants() -> None:
    constants = fit([])
    assert {name: getattr(constants, name) for name in START} == {name: start for name, (start, _, _) in START.items()}


def test_truths_above_the_upper_bound_count_as_underpredicted() -> None:
    low, high = (row(peak_bytes=str(size)) for size in (1, 10**15))
    scored, _ = accuracy.score([low, high], leave_one_source_out=False)
    assert [each.is_under for each in scored] == [False, True]
    assert "n=2 " in accuracy.summary(scored)
    assert "under_rate=50.00" in accuracy.summary(scored)


def test_the_project_is_the_source() -> None:
    assert source_project("https://github.com/owner/Name/blob/x.md@1") == "name"
    assert source_project("paper") == "paper"
    assert source_project("daddyofadoggy/blog posts/x.md@1") == "daddyofadoggy/blog"


def test_the_peak_of_nvidia_smi_is_the_truth_of_device(tmp_path: Path) -> None:
    peaks = tmp_path / "peaks.csv"
    peaks.write_text("id,nvidia_smi_mib\none,1024\n")
    rows = [row(), row(id="two"), row(id="three", metric="device")]
    found = accuracy_device.device_rows(rows, peaks)
    assert [(each.id, each.metric) for each in found] == [("one", "device"), ("three", "device")]
    assert found[0].peak_bytes == GIB
    with pytest.raises(ValueError, match="names rows that are nowhere: one"):
        accuracy_device.device_rows(rows[1:], peaks)
