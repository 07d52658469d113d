"""Parses published rows into architectures and recipes.

Everything depends on columns (and on words in the notes that any source could use), never on an id or a source. An
empty or unknown value takes a documented default here and counts as an unknown, which widens the row's interval.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from accuracy_cells import (
    BACKENDS,
    CHECKPOINTINGS,
    DTYPE_BYTES,
    METRICS,
    Cells,
)
from accuracy_shapes import model_name, quantization, read_shape

from memtune.gpus.driver_overhead import CONTEXT_BYTES
from memtune.gpus.gpu import of_product
from memtune.memory.formulas.recipe import QUANTIZED_BYTES, SCALE_BYTES, Recipe, is_narrow
from memtune.memory.formulas.shape import Shape
from memtune.memory.formulas.terms import ALWAYS, FORWARD, LOSS, REDUCE, REDUCING
from memtune.memory.optimizer_bytes import BYTES, OptimizerBytes, optimizer_bytes
from memtune.plans.knobs import (
    Attention,
    Checkpointing,
    Optimizer,
)
from memtune.plans.plan import DEFAULT_BUCKET_ELEMENTS, FUSED_LOSS_CHUNKS

DEFAULT_SEQUENCE = 2048
# DeepSpeed's default of stage3_max_live_parameters, however large its buckets are (runtime/zero/config.py).
_LIVE_ELEMENTS = 1_000_000_000
# Projects that have nothing but their name in common with another.
_NAMESAKES = ("daddyofadoggy/blog",)


@dataclass(frozen=True)
class Row:
    """One published peak, ready to be predicted."""

    id: str
    source: str
    family: str
    metric: str
    quality: str
    peak_bytes: int
    gpu_bytes: int
    shape: Shape
    recipe: Recipe


def read_rows(path: Path) -> tuple[list[Row], list[str]]:
    """Every row of a file that can be scored, and remarks about unknown values and skipped rows."""
    rows, remarks = [], []
    with path.open(newline="", encoding="utf-8") as file:
        for number, given in enumerate(csv.DictReader(file), start=2):
            cells = Cells(given)
            try:
                rows.append(read_row(cells))
            except ValueError as error:
                remarks.append(f"{path}, line {number}: left out: {error}")
            remarks += [f"{path}, line {number}: {remark}" for remark in cells.remarks]
    if not rows:
        raise ValueError(f"{path}: no row that can be scored; bench/data/README.md tells its columns")
    return rows, remarks


def read_row(cells: Cells) -> Row:
    """One row of the table."""
    metric, peak_bytes = cells.needed("metric"), int(float(cells.needed("peak_bytes")))
    if metric not in METRICS or peak_bytes <= 0:
        raise ValueError(f"metric {metric!r} with {peak_bytes} bytes cannot be scored; known are {', '.join(METRICS)}")
    shape = read_shape(cells)
    return Row(
        id=cells["id"],
        source=source_project(cells.needed("source")),
        family=re.split(r"[\d.-]", model_name(cells))[0],
        metric=metric,
        quality=cells["quality"],
        peak_bytes=peak_bytes,
        gpu_bytes=_gpu_bytes(cells["gpu"]),
        shape=shape,
        recipe=_recipe(cells, shape),
    )


def _gpu_bytes(name: str) -> int:
    """The memory that a GPU gives a process, 0 if unknown."""
    gpu = of_product(name.replace(" ", "-"))
    return gpu.usable_bytes if gpu else 0


def source_project(source: str) -> str:
    """The project that published a row: the name in ``owner/name``, without the host, the path and the commit."""
    parts = source.split()[0].removeprefix("https://").removeprefix("github.com/").lower().split("/")
    # A project under two owners counts as one: its rows share code, and must not be fitted on each other.
    return "/".join(parts[:2]) if "/".join(parts[:2]) in _NAMESAKES else parts[min(1, len(parts) - 1)]


def _recipe(cells: Cells, shape: Shape) -> Recipe:
    weight = cells.word("weight_dtype", DTYPE_BYTES, 2)
    gradient = cells.word("grad_dtype", DTYPE_BYTES, weight)
    compute = cells.word("compute_dtype", DTYPE_BYTES, weight)
    stage, shards = cells.whole("zero_stage", 0), cells.whole("shard_world", 1)
    optimizer = _optimizer(cells)
    notes, backend = cells["notes"].lower(), cells.word("framework", BACKENDS, "none")
    liger_layers = "liger's norm, rotation and feed-forward" in notes
    # Its LayerNormLinear keeps a norm's input and output, and what fuses the activation the input and the product
    # (TransformerEngine pytorch/module/layernorm_linear.py and layernorm_mlp.py; Megatron-LM core/fusions).
    has_engine_layers = re.search("transformer ?engine", cells["attention"].lower()) is not None
    is_older = backend == "deepspeed" and "deepspeed of 2026" not in notes
    micro_batch, length = cells.whole("micro_batch", 1), cells.whole("seq_len", DEFAULT_SEQUENCE)
    return Recipe(
        backend=backend,
        micro_batch=micro_batch,
        sequence_length=length,
        accumulates=_accumulates(notes),
        defers_reduction="deferred reduction" in notes,
        # An adapter is trained in the precision of its gradients, not in that of its base.
        weight_bytes=gradient if shape.has_adapter else weight,
        base_bytes=QUANTIZED_BYTES.get(quantization(cells), weight),
        frozen_bytes=weight,
        compute_bytes=compute,
        gradient_bytes=gradient,
        reduce_bytes=4 if "reduced in fp32" in notes else 2 if "reduced in bf16" in notes else gradient,
        master_bytes=_master_bytes(cells, notes),
        state_bytes=optimizer.states,
        outside_state_bytes=optimizer.outside,
        foreach_bytes=0.0 if cells.says("fused_step") else _foreach_lists(notes) * optimizer.foreach,
        alone_bytes=optimizer.alone,
        scale_bytes=SCALE_BYTES.get(quantization(cells), 0.0),
        weight_shards=shards if stage >= 3 else 1,
        gradient_shards=shards if stage >= 2 else 1,
        state_shards=shards if stage >= 1 else 1,
        checkpointing=_checkpointing(cells),
        checkpoints_half="every second layer" in notes,
        attention=_attention(cells, shape),
        fused_loss="fused-linear" in notes,
        chunked_loss="chunked ce" in notes,
        loss_chunks=_loss_chunks(notes, shape, micro_batch * length) if "fused-linear" in notes else FUSED_LOSS_CHUNKS,
        compiled=cells.says("compiled"),
        liger_layers=liger_layers,
        fused_norms=has_engine_layers or _fuses_torch_norms(notes),
        fused_activation=has_engine_layers,
        compiles_loss=_compiles_loss(cells, backend, notes),
        mixes_units="frozen and trained weights share units" in notes,
        keeps_quantized_inputs=_is_bitsandbytes_before(notes, 44),
        expandable_segments="expandable segments" in notes,
        varying_lengths="lengths vary" in notes,
        # From 1.13 on, TRL's loss computes the logits in the format of the hidden states.
        widens_head="chunked_nll" in notes and _is_before(notes, (1, 13), "trl"),
        loss_kernel_bytes=_loss_kernel_bytes(notes, compute),
        loss_differentiates=_has_liger_loss(notes),
        upcasts_loss=_upcasts_loss(notes, model_name(cells)),
        autocasts_loss="autocast upcasts" in notes,
        # Releases of transformers (models/llama/modeling_llama.py and loss/loss_utils.py of each).
        returns_fp32_logits=_is_before(notes, (4, 46)),
        shifts_logits="shifted logits" in notes or _is_before(notes, (4, 49)),
        upcasts_scores="softmax in 16 bits" not in notes,
        writes_softmax="softmax are written out" in notes,
        drops_outputs="transformers' trainer" in notes or "outputs dropped" in notes,
        # Liger's kernels replace parts of transformers' model.
        counts_layers=liger_layers or "transformers' model" in notes,
        without_autocast="without autocast" in notes,
        builds_whole="built whole" in notes,
        # Most published runs are older than the releases of DeepSpeed that do otherwise (#7828 and #8189, 2026).
        keeps_gathered=(is_older and stage >= 3 and _keeps_gathered(cells)) or _stays_gathered(notes),
        older_deepspeed=is_older,
        whole_logits="whole logits" in notes,
        whole_embedding="whole embedding" in notes,
        step_in_backward=cells.says("step_in_backward"),
        offloads_states=cells["optimizer_on"] == "cpu" or cells.says("paged"),
        offloads_gradients="gradients" in cells["offload_kind"],
        keeps_reduced=cells["framework"] == "fsdp",
        offloads_weights="param" in cells["offload_kind"],
        offloads_activations="activation" in cells["offload_kind"],
        bucket_elements=_bucket_elements(shape, notes) if backend == "deepspeed" else 0,
        overlaps_reduction=re.search("overlap_comm|overlapped communication", notes) is not None,
        live_elements=_LIVE_ELEMENTS if backend == "deepspeed" else 0,
        bucket_phases=_bucket_phases(stage, cells.whole("n_gpus", 1), _accumulates(notes), is_older)
        if backend == "deepspeed"
        else (),
        tensor_parallel=cells.whole("tp", 1),
        pipeline_parallel=cells.whole("pp", 1),
        context_parallel=cells.whole("cp", 1),
        gathers_keys="ring attention" in notes,
        world=cells.whole("n_gpus", 1),
        bucket_view=backend != "ddp",
        context_bytes=_context_bytes(notes),
        unknown_inputs=_unknown_inputs(cells),
    )


def _accumulates(notes: str) -> bool:
    """Whether gradients live through the forward pass. Before torch 2.0, zero_grad filled them with zeros instead."""
    found = re.search(r"grad accum (\d+)", notes)
    keeps = re.search(r"gradients in a buffer|live through the forward pass|\btorch [01]\.", notes) is not None
    return keeps or (found is not None and int(found[1]) > 1)


def _foreach_lists(notes: str) -> int:
    """The lists of temporaries in AdamW's step: before July 2023, epsilon was added to a copy (pytorch#104780)."""
    return 2 if re.search(r"torch 2\.0\b|torch 2\.1 of june 2023", notes) else 1


def _master_bytes(cells: Cells, notes: str) -> int:
    """The notes mention DeepSpeed's bf16_master_weights_and_grads; its stage 3 copies its weights in any case."""
    return 2 if "master weights in 16 bits" in notes else 4 if cells.says("fp32_master") else 0


def _fuses_torch_norms(notes: str) -> bool:
    """Whether torch's RMSNorm has a kernel, as from 2.8 on (aten layer_norm.cpp, rms_norm_symint)."""
    return "torch's rmsnorm" in notes and not _is_before(notes, (2, 8), "torch")


def _stays_gathered(notes: str) -> bool:
    """Whether FSDP's units stay until their backward pass: a choice, or for want of a limit (pytorch#104900)."""
    return "gathers run ahead" in notes or "stay gathered until their backward pass" in notes


def _keeps_gathered(cells: Cells) -> bool:
    """Whether stage 3 keeps gathered weights; 0.18 releases a checkpointed model's head, as 0.14.5 did not."""
    is_released = "deepspeed 0.18" in cells["notes"].lower() and cells["checkpointing"] == "full"
    return "built whole" in cells["notes"] and not is_released


def _compiles_loss(cells: Cells, backend: str, notes: str) -> bool:
    """If blocks are compiled one by one, as under FSDP, the loss stays eager unless the notes say otherwise."""
    is_left_out = "loss is not compiled" in notes or backend == "fsdp"
    return "compiled loss" in notes or (cells.says("compiled") and not is_left_out)


def _bucket_phases(stage: int, world: int, accumulates: bool, is_older: bool) -> tuple[int, ...]:
    """The phases in which DeepSpeed has its reduce bucket, as memtune.memory.formulas.recipe has them for plans.

    Before deepspeed#7665 (November 2025) stages 1 and 2 allocated it before the backward pass, so beside the loss.
    """
    if stage >= 3:
        return ALWAYS
    if stage == 0:
        return (REDUCE,) if world > 1 else ()
    if stage == 1 and accumulates:
        return (FORWARD, LOSS, *REDUCING)
    return (LOSS, *REDUCING) if is_older else REDUCING


def _bucket_elements(shape: Shape, notes: str) -> int:
    """transformers fills in "auto" with the square of the hidden size (integrations/deepspeed.py)."""
    stated = re.search(r"buckets of (\d+) elements", notes)
    if stated:
        return int(stated[1])
    return shape.hidden**2 if "auto buckets" in notes else DEFAULT_BUCKET_ELEMENTS


def _upcasts_loss(notes: str, model: str) -> bool:
    """Before 4.49, GPT-BigCode's loss in transformers did not upcast its logits (transformers#35875)."""
    if "loss in 16 bits" in notes:
        return False
    return not (_is_before(notes, (4, 49)) and re.search("bigcode|starcoder|santacoder", model))


def _is_before(notes: str, release: tuple[int, int], library: str = "transformers") -> bool:
    """Whether a stated library is older than a release."""
    found = re.search(rf"\b{library} (\d+)\.(\d+)", notes)
    return found is not None and (int(found[1]), int(found[2])) < release


def _is_bitsandbytes_before(notes: str, minor: int) -> bool:
    found = re.search(r"bitsandbytes 0\.(\d+)", notes)
    return found is not None and int(found[1]) < minor


def _context_bytes(notes: str) -> float:
    """The memory outside torch's allocator, from a row; nvml's own number includes the driver's reserve."""
    found = re.search(r"context[^;]*? of (\d+) mb measured", notes)
    kept = re.search(r"(\d+) mb that the driver keeps", notes)
    if kept:
        return CONTEXT_BYTES + float(kept[1]) * 1024**2
    return float(found[1]) * 1024**2 if found else 0.0


def _loss_kernel_bytes(notes: str, compute: int) -> float | None:
    """What a loss's kernel makes beside a logit: usually a copy in fp32 and the gradient, or less in place of others.

    Megatron's has a softmax in fp32, which becomes the gradient (core/tensor_parallel/cross_entropy.py).
    """
    if _has_liger_loss(notes) or "ce kernels: transformerengine's, in place" in notes:
        return 0.0
    if "ce kernels" not in notes:
        return None
    return 4.0 if "megatron's own keeps a softmax in fp32, in place" in notes else compute + 4.0


def _has_liger_loss(notes: str) -> bool:
    """Whether Liger's fused loss, whose kernel has written gradients in place of logits since 0.5.10, adds up the
    head's gradient as since 0.6.2 (ops/fused_linear_cross_entropy.py of each release).
    """
    is_named = "fused-linear: liger's own" in notes and re.search(r"\bliger 0\.\d", notes) is not None
    return is_named and not _is_before(notes, (0, 7), "liger")


def _loss_chunks(notes: str, shape: Shape, tokens: int) -> float:
    """The parts of the logits that a fused loss makes one after the other: as a row says, or as Liger's does."""
    if entries := re.search(r"chunks of ([0-9,]+) entries", notes):
        return max(shape.vocab / _whole(entries[1]), 1.0)
    if at_a_time := re.search(r"([0-9,]+) tokens at a time", notes):
        return max(tokens / _whole(at_a_time[1]), 1.0)
    # ops/fused_linear_cross_entropy.py: a chunk of logits takes about as much as the hidden states.
    least = tokens / max(math.ceil(shape.vocab / shape.hidden), 1)
    return max(tokens / (1 << math.ceil(math.log2(max(least, 1.0)))), 1.0)


def _whole(number: str) -> int:
    return int(number.replace(",", ""))


def _optimizer(cells: Cells) -> OptimizerBytes:
    """An unknown optimizer is assumed to be AdamW, by far the most common."""
    name = cells["optimizer_name"]
    plain = optimizer_bytes(name)
    if plain is None:
        plain = BYTES[Optimizer(cells.unknown("optimizer_name", "adamw") if name else "adamw")]
    return plain if is_narrow(plain.states) else plain.of_bytes(cells.word("state_dtype", DTYPE_BYTES, 4))


def _checkpointing(cells: Cells) -> Checkpointing:
    if re.fullmatch(r"every-([2-9]|\d\d+)", cells["checkpointing"]):
        return Checkpointing.parse(cells["checkpointing"])
    return Checkpointing(cells.word("checkpointing", CHECKPOINTINGS, "none"))


def _attention(cells: Cells, shape: Shape) -> Attention:
    # torch's scaled_dot_product_attention runs a flash kernel too, but on keys and values repeated for every head,
    # unless transformers leaves that to torch: from 4.54 on, where there is no mask. From 4.49 on, a cap of scores is
    # left out (sdpa_attention.py of both).
    by_torch = cells["attention"].startswith("sdpa")
    is_capped = shape.attention_softcap and not (by_torch and "transformers' model" in cells["notes"])
    if cells["attention_kind"] == "eager" or is_capped:
        return Attention.EAGER
    repeats = by_torch and "heads share keys" not in cells["notes"]
    return Attention.SDPA if repeats else Attention.FLASH


# A source that knows these always states them, even if as none.
_STATED = ("vocab", "micro_batch", "weight_dtype", "compute_dtype", "optimizer_name", "checkpointing", "framework")
_UNKNOWN: tuple[Callable[[Cells], bool], ...] = (
    lambda cells: not all(cells[name] for name in ("hidden", "layers", "heads", "ffn")),
    lambda cells: not cells["state_dtype"] and _optimizer(cells) != BYTES[Optimizer.ADAMW_8BIT],
    lambda cells: not cells["attention_kind"],
    lambda cells: bool(cells["lora_rank"]) and not cells["lora_targets"],
    lambda cells: not cells["seq_len"] or "truncation cap" in cells["notes"],
    # Whether gradients live through the forward pass; an adapter's are few.
    lambda cells: not cells["lora_rank"] and "grad accum" not in cells["notes"],
)


def _unknown_inputs(cells: Cells) -> int:
    empty = sum(not cells[name] for name in _STATED)
    return empty + sum(is_unknown(cells) for is_unknown in _UNKNOWN) + len(cells.remarks)
