"""The plot of `memtune plan --plot`: memory by component, and by micro-batch, against the GPU's limit."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtune.memory.prediction import Prediction
from memtune.planning.space import Candidate
from memtune.plans.plan import Plan
from memtune.units import Unit, amount, unit_of
from memtune_cli.errors import InputError, installing
from memtune_cli.input.prediction_case import PredictionCase
from memtune_cli.views.render import visible_parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _FAINT, _LIMIT = "#1f2933", "#9aa5b1", "#c0392b"
_PALETTE = (
    "#3b6fb6",
    "#7fa8d9",
    "#e0a030",
    "#8c6bb1",
    "#4c9f70",
    "#d9705a",
    "#6ab7b5",
    "#b0885c",
    "#a3a948",
    "#c98bb9",
)
OTHER_COLOUR = "#b8c2cc"
# Each component has one colour in all plots; rare and small ones share one.
COMPONENT_COLOURS = dict(
    zip(
        (
            "weights",
            "master weights",
            "optimizer states",
            "gradients",
            "activations",
            "logits",
            "allocator",
            "nccl",
            "gathered units",
            "layer in backward",
        ),
        _PALETTE,
        strict=True,
    )
)
# Plan lines have markers and colours that no component has. More than these could not be distinguished.
_LINES = (
    ("#111827", "o"),
    ("#d6006e", "s"),
    ("#00897b", "^"),
    ("#5b2ea6", "D"),
    ("#8d4a00", "v"),
    ("#6b7280", "P"),
)
# The most micro-batch labels that fit below an axis.
_TICKS = 8
# Plans above this multiple of the GPU's memory switch to a logarithmic axis.
_FAR = 10
# Loosely typed: only some matplotlib versions have literal types for the keys.
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": _INK,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Keep text as text, and make the output deterministic.
    "svg.fonttype": "none",
    "svg.hashsalt": "memtune",
}


def draw(path: Path, case: PredictionCase, chosen: Plan, candidates: Sequence[Candidate]) -> None:
    """Draw a plan and its neighbouring candidates."""
    try:
        import matplotlib
    except ImportError:
        raise InputError(f"--plot: matplotlib is not installed; {installing('plot')}") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    prediction = case.predictor.predict(chosen)
    with pyplot.rc_context(STYLE):
        figure, (left, right) = pyplot.subplots(
            1, 2, figsize=(13, 5.4), width_ratios=(1.15, 1), layout="constrained", dpi=150
        )
        figure.suptitle(f"{case.name}: {chosen}", x=0.01, ha="left", fontsize=13, fontweight="bold")
        _breakdown(left, prediction, case.workload.gpu.usable_bytes)
        _micro_batches(right, case, chosen, candidates)
        try:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise InputError(f"--plot: {path} cannot be written: {error.strerror}") from None
        finally:
            pyplot.close(figure)


def _breakdown(axes: Axes, prediction: Prediction, usable_bytes: int) -> None:
    """A waterfall: one row per component, each starting where the one above ends."""
    unit = unit_of(usable_bytes)
    device, scale = prediction.device, unit.size_bytes
    parts, start = visible_parts(prediction, unit), 0.0
    for row, part in enumerate(parts):
        size = part.bytes.expected / scale
        colour = COMPONENT_COLOURS.get(part.name, OTHER_COLOUR)
        axes.barh(row, size, left=start, color=colour, height=0.72, zorder=3)
        axes.annotate(unit.number(part.bytes.expected), (start + size, row), (5, 0), va="center", **_BESIDE)
        start += size
        axes.plot([start, start], [row, row + 1], color=_FAINT, linewidth=0.8, zorder=2)
    last = len(parts)
    axes.barh(last, device.expected / scale, color=_INK, height=0.72, zorder=3)
    spread = [[(device.expected - device.lower) / scale], [(device.upper - device.expected) / scale]]
    axes.errorbar(device.expected / scale, last, xerr=spread, color=OTHER_COLOUR, capsize=5, linewidth=1.8, zorder=4)
    label = f" {amount(device.expected, usable_bytes)} in all"
    inside: dict[str, Any] = {"va": "center", "color": "white", "fontweight": "bold", "zorder": 5}
    axes.annotate(label, (0, last), (2, 0), textcoords="offset points", **inside)
    axes.set_yticks(range(last + 1), [*(part.name for part in parts), "peak"])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, max(device.upper, usable_bytes) / scale * 1.08)
    axes.set_xlabel(f"{unit.name}B on each GPU")
    axes.axvline(usable_bytes / scale, color=_LIMIT, linewidth=1.6, linestyle=(0, (5, 3)), zorder=2)
    limit = f" GPU {amount(usable_bytes, usable_bytes)} "
    side = "left" if device.upper > _FAR * usable_bytes else "right"
    axes.text(usable_bytes / scale, -0.62, limit, color=_LIMIT, ha=side, va="center", fontsize=9)
    axes.set_title(f"At the peak, in phase {prediction.peak_phase}", loc="left", pad=14, fontsize=10.5)
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.8, zorder=0)


_BESIDE: dict[str, Any] = {
    "textcoords": "offset points",
    "fontsize": 9,
    "zorder": 5,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
}


def _micro_batches(axes: Axes, case: PredictionCase, chosen: Plan, candidates: Sequence[Candidate]) -> None:
    """The memory of each family by micro-batch; the chosen family is the thick line with its interval."""
    usable_bytes = case.workload.gpu.usable_bytes
    unit = unit_of(usable_bytes)
    limit = usable_bytes / unit.size_bytes
    size = case.predictor.predict(chosen).device.expected / unit.size_bytes
    top = math.inf if size > _FAR * limit else max(2 * limit, 1.25 * size)
    for number, (name, members) in enumerate(_curves(chosen, candidates, top * unit.size_bytes).items()):
        _curve(axes, name, members, unit, _LINES[number], chosen_family=number == 0)
    axes.plot(chosen.micro_batch, size, "o", markersize=13, markerfacecolor="none", markeredgecolor=_INK, zorder=5)
    axes.axhline(limit, color=_LIMIT, linewidth=1.6, linestyle=(0, (5, 3)), zorder=2)
    label = f"GPU {amount(usable_bytes, usable_bytes)}"
    right_edge = axes.get_yaxis_transform()
    axes.text(1, limit, label, color=_LIMIT, va="bottom", ha="right", fontsize=9, transform=right_edge, zorder=5)
    axes.set_xscale("log", base=2)
    shown = spread({candidate.plan.micro_batch for candidate in candidates}, chosen.micro_batch, _TICKS)
    axes.set_xticks(shown, [str(size) if size < 1_000_000 else f"{size:.0e}" for size in shown])
    axes.minorticks_off()
    if top == math.inf:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, top)
    axes.set_xlabel("micro-batch (accumulation keeps the global batch)")
    axes.set_ylabel(f"{unit.name}B on each GPU")
    axes.set_title("Other micro-batches and plans", loc="left", pad=14, fontsize=10.5)
    axes.grid(color="#e4e7eb", linewidth=0.8, zorder=0)
    axes.legend(framealpha=0.9, edgecolor="none", loc="best", fontsize=8.5)


def spread(sizes: Collection[int], chosen: int, most: int) -> list[int]:
    """At most about ``most`` of the sizes, spaced by equal factors and including the chosen one."""
    # A little less, so that rounding drops none.
    step = (max(sizes) / min(sizes)) ** (1 / most) / 1.001
    kept = [chosen]
    for size in sorted((size for size in sizes if size < chosen), reverse=True):
        if size * step <= kept[0]:
            kept.insert(0, size)
    for size in sorted(size for size in sizes if size > chosen):
        if size >= kept[-1] * step:
            kept.append(size)
    return kept


def _curve(
    axes: Axes, name: str, members: list[Candidate], unit: Unit, look: tuple[str, str], chosen_family: bool
) -> None:
    colour, sign = look
    sizes = [candidate.plan.micro_batch for candidate in members]
    device = [candidate.prediction.device for candidate in members]
    expected = [d.expected / unit.size_bytes for d in device]
    (line,) = axes.plot(sizes, expected, f"{sign}-", color=colour, label=name, linewidth=1.4, markersize=4.5)
    if chosen_family:
        line.set(linewidth=2.6, markersize=5.5, zorder=4)
        low, high = [d.lower / unit.size_bytes for d in device], [d.upper / unit.size_bytes for d in device]
        axes.fill_between(sizes, low, high, color=colour, alpha=0.16, linewidth=0, zorder=1)


def _curves(chosen: Plan, candidates: Sequence[Candidate], top_bytes: float) -> dict[str, list[Candidate]]:
    """The families to draw, by name: the chosen one first, then the best ranked; equal curves are drawn once.

    Families entirely above the top of the plot are left out.
    """
    drawn: list[tuple[list[str], list[Candidate]]] = []
    for name, members in _families(chosen, candidates).items():
        if all(candidate.prediction.device.expected > top_bytes for candidate in members):
            continue
        names = next((names for names, other in drawn if _alike(members, other)), None)
        if names is None:
            drawn.append(([name], members))
        else:
            names.append(name)
    return {_joined(names): members for names, members in drawn[: len(_LINES)]}


def _alike(one: list[Candidate], other: list[Candidate]) -> bool:
    # Lines closer than 2% overlap.
    sizes = ([c.prediction.device.expected for c in members] for members in (one, other))
    return all(abs(a - b) <= 0.02 * b for a, b in zip(*sizes, strict=True))


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} alike"


def _families(chosen: Plan, candidates: Sequence[Candidate]) -> dict[str, list[Candidate]]:
    """Groups of candidates that differ only in the micro-batch, in its order; the chosen family first."""
    families: dict[str, list[Candidate]] = {_family(chosen): []}
    for candidate in candidates:
        families.setdefault(_family(candidate.plan), []).append(candidate)
    return {name: sorted(members, key=_micro_batch) for name, members in families.items()}


def _micro_batch(candidate: Candidate) -> int:
    return candidate.plan.micro_batch


def _family(plan: Plan) -> str:
    parts = str(plan).split("-")
    return "-".join([*parts[:3], *parts[4:]])
