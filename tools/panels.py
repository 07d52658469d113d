"""Panel and page types of the dashboards, independent of Grafana's JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GREEN, YELLOW, RED = "green", "yellow", "red"
Steps = tuple[tuple[float, str], ...]
PLAIN: Steps = ((0.0, GREEN),)


@dataclass(frozen=True)
class Panel:
    """One panel. ``queries`` are pairs of PromQL and legend; the first threshold starts at minus infinity."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: Literal["timeseries", "stat", "heatmap"] = "timeseries"
    thresholds: Steps = PLAIN
    width: int = 12
    is_stacked: bool = False
    # The series with this name is drawn dashed, as a limit or an expectation.
    dashed: tuple[str, ...] = ()
    # The quantity that the rows of a heat map stand for.
    rows: str = ""


@dataclass(frozen=True)
class Page:
    """One dashboard. ``variables`` are pairs of a name and the query for its values."""

    name: str
    title: str
    description: str
    variables: tuple[tuple[str, str], ...]
    panels: tuple[Panel, ...]
    # Annotations: PromQL with a sample at each event, and its text.
    marks: tuple[str, str] | None = None
