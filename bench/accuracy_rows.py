"""Published rows read as architectures and recipes.

Everything is keyed on columns (and on what the notes say in words that any source could use), never on an id or a
source. What a row leaves empty takes a documented default here and counts as an unknown, which widens its interval.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from memtune.knobs import Attention, Checkpointing
from memtune.model.architecture import Adapter, Architecture, Experts, Head, Kind
from memtune.model.count import ALL_LINEAR, parameters
from memtune.predict.recipe import QUANTIZED_BYTES, Recipe
from memtune.predict.shape import Shape, shape_of

DTYPE_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
BACKENDS = {"none": "none", "ddp": "ddp", "fsdp": "fsdp", "fsdp2": "fsdp", "deepspeed": "deepspeed"}
# Bytes of fp32 optimizer state per parameter; the state dtype scales them.
FP32_STATE_BYTES = {"adamw": 8.0, "adam": 8.0, "muon": 4.0, "lion": 4.0, "sgd": 4.0, "adafactor": 0.02}
# How adapters' targets are called in tables, by module of a layer here. A head is not adapted in this model: at rank r
# it has r x (hidden + vocabulary) parameters, far below the noise.
TARGETS = {
    "q": ("q_proj",),
    "k": ("k_proj",),
    "v": ("v_proj",),
    "o": ("o_proj",),
    "proj": ("o_proj",),
    "output_proj": ("o_proj",),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "all": (ALL_LINEAR,),
}
# Where an adapter's targets are not stated: the attention's projections, what tutorials and diffusers use.
DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
DEFAULT_SEQUENCE = 2048
# Whether counted parameters agree with the published number (a table rounds to two or three digits).
COUNT_TOLERANCE = 0.03


@dataclass(frozen=True)
class Row:
    """One published peak, ready to be predicted."""

    id: str
    source: str
    family: str
    metric: str
    quality: str
    peak_bytes: int
    shape: Shape
    recipe: Recipe


def read_rows(path: Path) -> list[Row]:
    """Every row of a file; a row that cannot be read names its line."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = []
        for number, cells in enumerate(csv.DictReader(file), start=2):
            rows.append(_read_numbered(path, number, cells))
    if not rows:
        raise ValueError(f"{path}: no rows")
    return rows


def _read_numbered(path: Path, number: int, cells: dict[str, str]) -> Row:
    try:
        return read_row(cells)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}, line {number}: {error!r}; see the README beside the data") from error


def read_row(cells: dict[str, str]) -> Row:
    """One row of the table."""
    architecture, published = _architecture(cells)
    adapter = _adapter(cells, architecture)
    # A model without a vocabulary is a diffusion transformer: the time step modulates its layers.
    shape = replace(shape_of(architecture, adapter), modulated=not cells["vocab"])
    shape = _with_published_count(shape, published, cells)
    return Row(
        id=cells["id"],
        source=source_project(cells["source"]),
        family=re.split(r"[\d.-]", cells["model"])[0].lower(),
        metric=cells["metric"],
        quality=cells["quality"],
        peak_bytes=int(cells["peak_bytes"]),
        shape=shape,
        recipe=_recipe(cells, shape),
    )


def source_project(source: str) -> str:
    """The project that published a row: ``owner/name`` without the host, the path and the commit."""
    parts = source.split()[0].removeprefix("https://").removeprefix("github.com/").split("/")
    # One project under two owners is one project: its rows share code, and must not be fitted on each other.
    return parts[1].lower()


def _number(cells: dict[str, str], name: str, default: int) -> int:
    return int(float(cells[name])) if cells.get(name) else default


def _yes(cells: dict[str, str], name: str) -> bool:
    return cells.get(name, "") not in ("", "no", "none")


def _architecture(cells: dict[str, str]) -> tuple[Architecture, float]:
    published = float(cells["params_b"]) * 1e9
    # Unknown dimensions: a transformer of hidden size h with h/128 layers has about 12 h^3 / 128 parameters.
    guess = 64 * round((published * 128 / 12) ** (1 / 3) / 64)
    hidden = _number(cells, "hidden", guess)
    heads = _number(cells, "heads", max(hidden // 128, 1))
    is_encoder = re.match(r"(distil)?(ro)?bert", cells["model"].lower()) is not None
    dropout = 0.1 if is_encoder else 0.0
    base = Architecture(
        name=cells["model"],
        kind=Kind.ENCODER if is_encoder else Kind.DECODER,
        hidden_size=hidden,
        layers=_number(cells, "layers", max(hidden // 128, 1)),
        heads=heads,
        kv_heads=_number(cells, "kv_heads", heads),
        head_dim=hidden // heads,
        ffn_size=_number(cells, "ffn", 4 * hidden),
        vocab_size=_number(cells, "vocab", 0),
        tied_embeddings=cells["tied"] == "yes",
        hidden_dropout=dropout,
        attention_dropout=dropout,
        experts=_experts(cells),
        head=Head.CLASSIFIER if "classification head" in cells["notes"] else Head.LANGUAGE_MODEL,
        label_count=2 if "classification head" in cells["notes"] else 0,
    )
    return _closest(base, published), published


def _experts(cells: dict[str, str]) -> Experts | None:
    found = re.search(r"(\d+)x\d+", cells["model"])
    return Experts(int(found[1]), 2, _number(cells, "ffn", 0)) if found else None


def _closest(base: Architecture, published: float) -> Architecture:
    """A table has no column for gating or the size of a head: take what comes closest to the published count.

    Published counts count tied embeddings once, whatever this framework keeps.
    """
    once = 0.0 if base.tied_embeddings else float(base.vocab_size * base.hidden_size)
    sizes = {base.head_dim, 128, 256}
    variants = [
        replace(base, gated_ffn=gated, rms_norm=gated, head_dim=size) for gated in (True, False) for size in sizes
    ]

    def distance(variant: Architecture) -> tuple[bool, float, bool, bool]:
        total = parameters(variant).total
        error = min(abs(total - published), abs(total - once - published)) / published
        # Where nothing comes close, a plain feed-forward is four times as wide as the hidden size.
        unusual = variant.gated_ffn == (base.ffn_size == 4 * base.hidden_size)
        far = error > COUNT_TOLERANCE
        return far, 0.0 if far else round(error, 2), unusual, variant.head_dim != base.head_dim

    return min(variants, key=distance)


def _adapter(cells: dict[str, str], architecture: Architecture) -> Adapter | None:
    if not cells["lora_rank"]:
        return None
    named = [target for name in cells["lora_targets"].split(",") for target in TARGETS.get(name.strip(), ())]
    absent = set() if architecture.gated_ffn else {"gate_proj"}
    targets = tuple(target for target in dict.fromkeys(named) if target not in absent) or DEFAULT_TARGETS
    return Adapter(int(cells["lora_rank"]), targets, cells["base_quant"] or "none")


def _with_published_count(shape: Shape, published: float, cells: dict[str, str]) -> Shape:
    """Parameters that the table counts and its dimensions do not explain: extra tables, or modulation in the layers."""
    missing = int(published) - shape.total
    if missing <= COUNT_TOLERANCE * published:
        return shape
    trainable = shape.trainable if shape.has_adapter else shape.total + missing
    total = shape.total + missing
    if cells["vocab"]:
        return replace(shape, root=shape.root + missing, total=total, trainable=trainable, active=shape.active)
    return replace(
        shape,
        layer=shape.layer + missing // shape.layers,
        total=total,
        trainable=trainable,
        active=shape.active + missing,
    )


def _recipe(cells: dict[str, str], shape: Shape) -> Recipe:
    weight = DTYPE_BYTES[cells["weight_dtype"] or "bf16"]
    gradient = DTYPE_BYTES[cells["grad_dtype"] or cells["weight_dtype"] or "bf16"]
    compute = DTYPE_BYTES[cells["compute_dtype"] or cells["weight_dtype"] or "bf16"]
    stage, shards = _number(cells, "zero_stage", 0), _number(cells, "shard_world", 1)
    notes, backend = cells["notes"].lower(), BACKENDS[cells["framework"] or "none"]
    return Recipe(
        backend=backend,
        micro_batch=_number(cells, "micro_batch", 1),
        sequence_length=_number(cells, "seq_len", DEFAULT_SEQUENCE),
        accumulates=_accumulates(notes),
        # An adapter learns in the precision of its gradients, whatever its base is held in.
        weight_bytes=gradient if shape.has_adapter else weight,
        base_bytes=QUANTIZED_BYTES.get(cells["base_quant"], weight),
        frozen_bytes=weight,
        compute_bytes=compute,
        gradient_bytes=gradient,
        master_bytes=4 if _yes(cells, "fp32_master") else 0,
        state_bytes=_state_bytes(cells),
        weight_shards=shards if stage >= 3 else 1,
        gradient_shards=shards if stage >= 2 else 1,
        state_shards=shards if stage >= 1 else 1,
        checkpointing=_checkpointing(cells),
        attention=_attention(cells),
        fused_loss="fused-linear" in notes,
        chunked_loss="chunked ce" in notes,
        compiled=_yes(cells, "compiled"),
        fused_loss_kernel="ce kernels" in notes,
        fused_step=_yes(cells, "fused_step"),
        step_in_backward=_yes(cells, "step_in_backward"),
        offloads_states=cells["optimizer_on"] == "cpu" or _yes(cells, "paged"),
        offloads_gradients="gradients" in cells["offload_kind"],
        offloads_weights="param" in cells["offload_kind"],
        offloads_activations="activation" in cells["offload_kind"],
        bucket_elements=500_000_000 if backend == "deepspeed" and shards > 1 else 0,
        bucket_copies=2 if backend == "deepspeed" and shards > 1 else 0,
        tensor_parallel=_number(cells, "tp", 1),
        pipeline_parallel=_number(cells, "pp", 1),
        context_parallel=_number(cells, "cp", 1),
        world=_number(cells, "n_gpus", 1),
        bucket_view=backend != "ddp",
        context_bytes=_context_bytes(notes),
        unknown_inputs=_unknown_inputs(cells),
    )


def _accumulates(notes: str) -> bool:
    found = re.search(r"grad accum (\d+)", notes)
    return found is not None and int(found[1]) > 1


def _context_bytes(notes: str) -> float:
    found = re.search(r"context[^;]*? of (\d+) mb measured", notes)
    return float(found[1]) * 1024**2 if found else 0.0


def _state_bytes(cells: dict[str, str]) -> float:
    name = cells["optimizer_name"]
    if name.endswith("8bit"):
        return 2.0 + 2 * 4 / 256
    return FP32_STATE_BYTES[name] * DTYPE_BYTES[cells["state_dtype"] or "fp32"] / 4


def _checkpointing(cells: dict[str, str]) -> Checkpointing:
    return Checkpointing.parse(cells["checkpointing"] or "none")


def _attention(cells: dict[str, str]) -> Attention:
    if cells["attention_kind"] == "eager":
        return Attention.EAGER
    # torch's scaled_dot_product_attention runs a flash kernel too, but on keys and values repeated for every head.
    return Attention.SDPA if cells["attention"].startswith("sdpa") else Attention.FLASH


_UNKNOWN: tuple[Callable[[dict[str, str]], bool], ...] = (
    lambda cells: not cells["hidden"],
    lambda cells: not cells["vocab"],
    lambda cells: not cells["attention_kind"],
    lambda cells: bool(cells["lora_rank"]) and not cells["lora_targets"],
    lambda cells: not cells["seq_len"] or "truncation cap" in cells["notes"],
)


def _unknown_inputs(cells: dict[str, str]) -> int:
    return sum(is_unknown(cells) for is_unknown in _UNKNOWN)
