"""The memory timeline of one step as a plot, stacked by kind."""

from __future__ import annotations

from pathlib import Path

from memtune.memory.replay import Timeline
from memtune.units import GIB, gib
from memtune_cli.errors import InputError, installing
from memtune_cli.views.plot import STYLE

# A colour for each of memtune.memory.replay.tape.KINDS.
COLOURS = ("#3b6fb6", "#e0a030", "#8c6bb1", "#6ab7b5", "#4c9f70", "#d9705a")
_COLUMNS = 1600


def write(path: Path, title: str, timeline: Timeline) -> None:
    """Write a PNG or SVG file."""
    try:
        import matplotlib
    except ImportError:
        raise InputError(f"{path}: matplotlib is not installed; {installing('plot')}, or draw .html") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    places = timeline.downsampled(_COLUMNS)
    layers = [[timeline.points[place][kind] / GIB for place in places] for kind in range(len(timeline.kinds))]
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(13, 5.4), layout="constrained", dpi=150)
        axes.stackplot(places, layers, labels=timeline.kinds, colors=COLOURS, linewidth=0, step="post")
        total = sum(timeline.points[timeline.peak])
        axes.set_ylim(0, 1.12 * total / GIB)
        axes.set_xlim(0, len(timeline.points) - 1)
        axes.annotate(f"peak {gib(total, 2)}", (timeline.peak, total / GIB), (0, 6), textcoords="offset points")
        for place, name in timeline.marks:
            axes.axvline(place, color="#9aa5b1", linewidth=0.8)
            axes.text(place, 1.11 * total / GIB, f" {name}", va="top", fontsize=8.5)
        axes.set_xticks([])
        axes.set_xlabel("one optimizer step, in the order of allocations")
        axes.set_ylabel("GiB that tensors hold on each GPU")
        axes.set_title(title, loc="left", fontweight="bold")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, reverse=True)
        try:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        finally:
            pyplot.close(figure)
