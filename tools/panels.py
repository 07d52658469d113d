"""What a dashboard is made of, before it is Grafana's JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GREEN, YELLOW, RED = "green", "yellow", "red"
Steps = tuple[tuple[float, str], ...]
PLAIN: Steps = ((0.0, GREEN),)


@dataclass(frozen=True)
class Panel:
    """One panel. ``queries`` are pairs of PromQL and legend; the first threshold holds from minus infinity."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: Literal["timeseries", "stat", "heatmap"] = "timeseries"
    thresholds: Steps = PLAIN
    width: int = 12
    is_stacked: bool = False
    # The line of this name is drawn dashed, as a bound or an expectation.
    dashed: tuple[str, ...] = ()
    # What a row of a heat map is, as its legend says which.
    rows: str = ""


@dataclass(frozen=True)
class Page:
    """One dashboard. ``variables`` are pairs of a name and the query of its choices."""

    name: str
    title: str
    description: str
    variables: tuple[tuple[str, str], ...]
    panels: tuple[Panel, ...]
    # PromQL that has a sample where something begins, and what is written there.
    marks: tuple[str, str] | None = None
