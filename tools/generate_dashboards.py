"""Generate the Grafana JSON of the dashboards; ``--check`` only compares it."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.dashboards import PAGES  # noqa: E402 - lies beside this file
from tools.panels import RED, Page, Panel  # noqa: E402 - lies beside this file

# Imported untyped: the types need Python 3.11's StrEnum, and mypy checks this project as 3.10.
_SDK = "grafana_foundation_sdk"
common: Any = import_module(f"{_SDK}.builders.common")
dashboard: Any = import_module(f"{_SDK}.builders.dashboard")
heatmap: Any = import_module(f"{_SDK}.builders.heatmap")
prometheus: Any = import_module(f"{_SDK}.builders.prometheus")
stat: Any = import_module(f"{_SDK}.builders.stat")
timeseries: Any = import_module(f"{_SDK}.builders.timeseries")
common_models: Any = import_module(f"{_SDK}.models.common")
heatmap_models: Any = import_module(f"{_SDK}.models.heatmap")
models: Any = import_module(f"{_SDK}.models.dashboard")
JSONEncoder: Any = import_module(f"{_SDK}.cog.encoder").JSONEncoder

TARGET = ROOT / "charts" / "memtune" / "dashboards"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHTS = {"timeseries": 8, "heatmap": 8, "stat": 4}
_BUILDERS = {"timeseries": timeseries.Panel, "stat": stat.Panel, "heatmap": heatmap.Panel}


def rendered(page: Page) -> str:
    """The file content of one dashboard."""
    built = (
        dashboard.Dashboard(page.title)
        .uid(f"memtune-{page.name}")
        .description(page.description)
        .tags(["memtune"])
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, query in page.variables:
        built = built.with_variable(_variable(name, query))
    for panel in page.panels:
        built = built.with_panel(_panel(panel))
    data: dict[str, Any] = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    if page.marks:
        data["annotations"] = {"list": [_marks(*page.marks)]}
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _variable(name: str, query: str) -> Any:
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(models.VariableOption(text="All", value="$__all", selected=True))
    )


def _panel(panel: Panel) -> Any:
    steps = [models.Threshold(value, color) for value, color in panel.thresholds]
    steps[0].value = None  # minus infinity
    built: Any = (
        _BUILDERS[panel.kind]()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .height(HEIGHTS[panel.kind])
        .span(panel.width)
        .thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    )
    for letter, (query, legend) in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query).legend_format(legend).ref_id(letter)
        built = built.with_target(target.instant() if panel.kind == "stat" else target.range())
    return _as_heat_map(built, panel) if panel.kind == "heatmap" else _as_lines(built, panel)


def _as_heat_map(built: Any, panel: Panel) -> Any:
    """Each series is a row; values are not bucketed."""
    return (
        built.calculate(False)
        .cell_values(heatmap.CellValues().unit(panel.unit))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Turbo")
            .steps(64)
            .min(0)
            .max(1)
        )
        .y_axis(heatmap.YAxisConfig().axis_label(panel.rows))
        .show_tooltip()
    )


def _as_lines(built: Any, panel: Panel) -> Any:
    if panel.kind == "stat":
        return built.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    built = built.fill_opacity(30 if panel.is_stacked else 0).line_width(2).axis_soft_min(0)
    built = built.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    built = built.legend(common.VizLegendOptions().show_legend(True).display_mode(common_models.LegendDisplayMode.LIST))
    if panel.is_stacked:
        built = built.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if any(color == RED for _, color in panel.thresholds):
        style = common.GraphThresholdsStyleConfig().mode(common_models.GraphTresholdsStyleMode.DASHED)
        built = built.thresholds_style(style)
    for name in panel.dashed:
        line = models.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [10, 10]})
        built = built.override_by_name(name, [line])
    return built


def _marks(query: str, title: str) -> dict[str, Any]:
    """A PromQL annotation, for which the library has no types."""
    return {
        "name": "Attempts",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": True,
        "expr": query,
        "iconColor": "purple",
        "step": "30s",
        "titleFormat": title,
    }


def main() -> int:
    """Write or compare the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    wanted = {TARGET / f"{page.name}.json": rendered(page) for page in PAGES}
    if parser.parse_args().check:
        found = {path: path.read_text() for path in TARGET.glob("*.json")}
        stale = sorted(path.name for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))
        for name in stale:
            print(f"charts/memtune/dashboards/{name} is out of date; run `make generate`")
        return int(bool(stale))
    TARGET.mkdir(exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
