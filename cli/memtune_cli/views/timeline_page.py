"""The memory timeline of one step as a self-contained HTML page."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from memtune.memory.replay import Timeline
from memtune.units import GIB, gib
from memtune_cli.views.timeline_plot import COLOURS

_COLUMNS = 1600
_WIDTH, _HEIGHT = 1200, 420


def write(path: Path, title: str, timeline: Timeline) -> None:
    """Write an HTML file."""
    path.write_text(page(title, timeline), encoding="utf-8")


def page(title: str, timeline: Timeline) -> str:
    """The page with a static SVG; the script only adds tooltips."""
    places = timeline.downsampled(_COLUMNS)
    points = [timeline.points[place] for place in places]
    top = 1.08 * sum(timeline.points[timeline.peak])
    across = _WIDTH / max(len(points) - 1, 1)
    shown = {"kinds": timeline.kinds, "gib": [[round(size / GIB, 4) for size in point] for point in points]}
    legend = "".join(
        f'<li><i style="background:{colour}"></i>{escape(name)}</li>'
        for name, colour in zip(timeline.kinds, COLOURS, strict=True)
    )
    # A closing tag inside a string would end the script element.
    data = json.dumps(shown, separators=(",", ":")).replace("</", "<\\/")
    return _PAGE.format(
        title=escape(title),
        peak=gib(sum(timeline.points[timeline.peak]), 2),
        width=_WIDTH,
        height=_HEIGHT,
        layers=_layers(points, across, top),
        marks=_marks(timeline, places, across),
        legend=legend,
        data=data,
    )


def _layers(points: list[tuple[int, ...]], across: float, top: float) -> str:
    """Stacked areas, one per kind."""
    below = [0] * len(points)
    shapes = []
    for kind, colour in enumerate(COLOURS):
        above = [low + point[kind] for low, point in zip(below, points, strict=True)]
        edge = [*enumerate(above), *reversed(list(enumerate(below)))]
        line = " ".join(f"{number * across:.1f},{_HEIGHT * (1 - size / top):.1f}" for number, size in edge)
        shapes.append(f'<polygon fill="{colour}" points="{line}"/>')
        below = above
    return "".join(shapes)


def _marks(timeline: Timeline, places: list[int], across: float) -> str:
    lines = []
    for start, name in timeline.marks:
        column = sum(place < start for place in places) * across
        lines.append(
            f'<line x1="{column:.1f}" x2="{column:.1f}" y2="{_HEIGHT}"/>'
            f'<text x="{column + 4:.1f}" y="13">{escape(name)}</text>'
        )
    return "".join(lines)


_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px/1.5 system-ui, sans-serif; color: #1f2933; max-width: {width}px; margin: 2em auto; padding: 0 1em }}
h1 {{ font-size: 1.2em; margin: 0 }}
svg {{ width: 100%; display: block; margin: 1em 0 .5em }}
svg line {{ stroke: #9aa5b1 }} svg text {{ font-size: 11px; fill: #1f2933 }}
ul {{ display: flex; flex-wrap: wrap; gap: .2em 1.2em; list-style: none; padding: 0; margin: 0 }}
i {{ display: inline-block; width: .8em; height: .8em; margin-right: .4em }}
output {{ display: block; min-height: 3em; font-variant-numeric: tabular-nums }}
</style></head><body>
<h1>{title}</h1>
<p>One optimizer step, in the order of allocations. At its peak tensors hold {peak} on each GPU.</p>
<svg viewBox="0 0 {width} {height}" role="img" aria-label="memory over one step by kind">{layers}{marks}</svg>
<ul>{legend}</ul>
<output></output>
<script>
const shown = {data};
const picture = document.querySelector("svg"), told = document.querySelector("output");
picture.addEventListener("pointermove", event => {{
  const box = picture.getBoundingClientRect();
  const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  const point = shown.gib[Math.round(share * (shown.gib.length - 1))];
  const parts = shown.kinds.map((kind, i) => kind + " " + point[i].toFixed(2) + " GiB");
  told.textContent = "here: " + point.reduce((a, b) => a + b, 0).toFixed(2) + " GiB = " + parts.join(" + ");
}});
</script></body></html>
"""
