"""The model of a published row: its dimensions from the table, and its published parameter count."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from accuracy_cells import QUANTIZATIONS, TARGETS, Cells

from memtune.memory.formulas.shape import Shape, shape_of
from memtune.model.architecture import Adapter, Architecture, Experts, Head, Image, Kind, ModuleNames
from memtune.model.count import parameters
from memtune.model.families.family import activation_tensors

# Default targets of an adapter: the attention's projections, as in tutorials and diffusers.
DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
# Tolerance between counted and published parameters (tables round to two or three digits).
COUNT_TOLERANCE = 0.03
_FUSED = "qkv_proj"


def read_shape(cells: Cells) -> Shape:
    """The sizes of the row's model, with its published number of parameters."""
    architecture, published = _architecture(cells)
    # A model without a vocabulary is a diffusion transformer: the time step modulates its layers.
    shape = replace(shape_of(architecture, _adapter(cells, architecture)), modulated=not cells["vocab"])
    return _with_published_count(shape, published, cells)


def _architecture(cells: Cells) -> tuple[Architecture, float]:
    published = cells.number("params_b", 0.0) * 1e9
    if not published and not (cells["hidden"] and cells["layers"]):
        raise ValueError("neither params_b nor hidden and layers are given: nothing says how large the model is")
    # Unknown dimensions: a transformer of hidden size h with h/128 layers has about 12 h^3 / 128 parameters.
    hidden = cells.whole("hidden", max(64 * round((published * 128 / 12) ** (1 / 3) / 64), 64))
    heads = cells.whole("heads", max(hidden // 128, 1))
    model = model_name(cells)
    is_encoder = re.search(r"bert|electra", model) is not None
    is_pair = re.search(r"(^|[-_])m?t5|bart|pegasus|marian", model) is not None
    image = _image(cells, model)
    layers = cells.whole("layers", max(hidden // 128, 1))
    # The default of the family's configuration class in transformers.
    dropout = 0.1 if is_encoder or is_pair or re.search(r"^(distil)?gpt-?2|^opt", model) else 0.0
    if stated := re.search(r"; dropout (\d\.\d+)", cells["notes"]):
        dropout = float(stated[1])
    is_capped = re.search(r"^gemma-?2-", model) is not None
    is_written_out = re.search(r"^(distil)?gpt-?2", model) is not None and "transformers' model" in cells["notes"]
    has_query_key_norm = re.search(r"^(qwen-?3|gemma-?3|olmo-?[23])", model) is not None
    classifies = "classification head" in cells["notes"]
    base = Architecture(
        name=cells["model"],
        kind=Kind.VISION if image else _kind_of_text(is_encoder, is_pair),
        hidden_size=hidden,
        layers=layers,
        encoder_layers=layers if is_pair else 0,
        heads=heads,
        kv_heads=cells.whole("kv_heads", heads),
        head_dim=max(hidden // heads, 1),
        ffn_size=cells.whole("ffn", 4 * hidden),
        vocab_size=int(cells.number("vocab", 0)),
        tied_embeddings=cells["tied"] == "yes",
        hidden_dropout=dropout,
        attention_dropout=dropout,
        query_key_norm=has_query_key_norm,
        final_norm=not is_encoder,
        activation_tensors=activation_tensors("gelu_new" if is_written_out else "gelu"),
        attention_softcap=50.0 if is_capped else 0.0,
        logit_softcap=30.0 if is_capped else 0.0,
        experts=_experts(cells),
        image=image,
        head=Head.CLASSIFIER if classifies else Head.LANGUAGE_MODEL,
        label_count=2 if classifies else 0,
        module_names=ModuleNames(query=_FUSED, key=_FUSED, value=_FUSED) if _is_fused(cells) else ModuleNames(),
    )
    published = published or float(parameters(base).total)
    gatings = (True,) if "gated feed-forward" in cells["notes"] else (True, False)
    closest = _closest(base, published, gatings)
    return replace(closest, rms_norm=closest.rms_norm and "LayerNorm" not in cells["notes"]), published


def _kind_of_text(is_encoder: bool, is_pair: bool) -> Kind:
    return Kind.ENCODER if is_encoder else Kind.ENCODER_DECODER if is_pair else Kind.DECODER


def _image(cells: Cells, model: str) -> Image | None:
    """The image of a vision transformer, whose name ends in the size of its patches: a class token and the patches."""
    patch = re.search(r"^vit[-_].*[-_](\d+)$", model)
    return Image(int(patch[1]) * math.isqrt(cells.whole("seq_len", 197) - 1), int(patch[1])) if patch else None


def model_name(cells: Cells) -> str:
    """The model's own name, without its owner's."""
    return cells["model"].rpartition("/")[2].lower()


def _experts(cells: Cells) -> Experts | None:
    found = re.search(r"(\d+)x\d+", cells["model"])
    return Experts(int(found[1]), 2, cells.whole("ffn", 0)) if found and cells["ffn"] else None


def _closest(base: Architecture, published: float, gatings: tuple[bool, ...]) -> Architecture:
    """Choose gating and head size, which tables lack, to match the published count most closely.

    Published counts count tied embeddings once, even where the framework keeps two.
    """
    once = 0.0 if base.tied_embeddings else float(base.vocab_size * base.hidden_size)
    sizes = {base.head_dim, 128, 256}
    variants = [replace(base, gated_ffn=gated, rms_norm=gated, head_dim=size) for gated in gatings for size in sizes]

    def distance(variant: Architecture) -> tuple[bool, float, bool, bool]:
        total = parameters(variant).total
        error = min(abs(total - published), abs(total - once - published)) / published
        # If nothing matches closely, a plain feed-forward is four times as wide as the hidden size.
        unusual = variant.gated_ffn == (base.ffn_size == 4 * base.hidden_size)
        far = error > COUNT_TOLERANCE
        return far, 0.0 if far else round(error, 2), unusual, variant.head_dim != base.head_dim

    return min(variants, key=distance)


def _adapter(cells: Cells, architecture: Architecture) -> Adapter | None:
    rank = cells.whole("lora_rank", 0)
    if not rank:
        return None
    named = [target for name in re.split(r"[,;\s]+", cells["lora_targets"].lower()) for target in _targets(name)]
    absent = set() if architecture.gated_ffn else {"gate_proj"}
    targets = tuple(target for target in dict.fromkeys(named) if target not in absent) or DEFAULT_TARGETS
    if _is_fused(cells):
        targets = tuple(
            dict.fromkeys(_FUSED if target in ("q_proj", "k_proj", "v_proj") else target for target in targets)
        )
    dropout, has_quantized_head = cells.number("lora_dropout", 0.0), "quantized head" in cells["notes"]
    return Adapter(rank, targets, quantization(cells), dropout, has_quantized_head)


def _is_fused(cells: Cells) -> bool:
    """Whether one module computes queries, keys and values; an adapter reads its input once."""
    return "fused qkv" in cells["notes"]


def _targets(name: str) -> tuple[str, ...]:
    return TARGETS.get(name.removesuffix("_proj").removeprefix("to_"), ()) or TARGETS.get(name, ())


def quantization(cells: Cells) -> str:
    """The quantization of an adapter's base."""
    return cells.word("base_quant", QUANTIZATIONS, "none")


def _with_published_count(shape: Shape, published: float, cells: Cells) -> Shape:
    """Parameters that the table counts beyond its dimensions: extra tables, or modulation in the layers."""
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
