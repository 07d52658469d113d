"""The generated Grafana dashboards: described, and querying only existing metrics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards import asked
from helm_chart import ROOT, objects, of_kind
from known_metrics import known_labels, known_names, labels_in, names_in
from promtool import check_rules

FILES = sorted((ROOT / "charts" / "memtune" / "dashboards").glob("*.json"))
DASHBOARDS: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in FILES}
PANELS = [(name, panel) for name, dashboard in DASHBOARDS.items() for panel in dashboard["panels"]]
UNITS = {"bytes", "ops", "percentunit", "reqps", "s", "short"}


def queries() -> list[str]:
    """Return every query of a panel, a variable and an annotation."""
    found = [target["expr"] for _, panel in PANELS for target in panel["targets"]]
    for dashboard in DASHBOARDS.values():
        found += [mark["expr"] for mark in dashboard.get("annotations", {}).get("list", ())]
    return found


def chosen(query: str) -> str:
    """Return the query with all variables set to "All", as Grafana fills them in."""
    return re.sub(r"\$(namespace|job|run)", ".*", query).replace("$__range", "1h")


def test_the_files_are_generated_from_their_source() -> None:
    command = [sys.executable, str(ROOT / "tools" / "generate_dashboards.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_three_dashboards_with_uids_of_their_own() -> None:
    assert list(DASHBOARDS) == ["fleet", "job", "operator"]
    assert [dashboard["uid"] for dashboard in DASHBOARDS.values()] == [f"memtune-{name}" for name in DASHBOARDS]
    assert [each["name"] for each in DASHBOARDS["job"]["templating"]["list"]] == [
        "datasource",
        "namespace",
        "job",
        "run",
    ]


@pytest.mark.parametrize("panel", [panel for _, panel in PANELS], ids=[panel["title"] for _, panel in PANELS])
def test_a_panel_has_a_unit_thresholds_and_a_description(panel: dict[str, Any]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in UNITS
    assert defaults["thresholds"]["steps"][0]["value"] is None
    values = [step["value"] for step in defaults["thresholds"]["steps"][1:]]
    assert values == sorted(values)
    assert panel["description"].endswith(".")
    assert panel["targets"]
    assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize(("name", "panel"), PANELS, ids=[f"{name}-{panel['title']}" for name, panel in PANELS])
def test_panels_use_existing_metrics(name: str, panel: dict[str, Any]) -> None:
    variables = {each["name"] for each in DASHBOARDS[name]["templating"]["list"]} | {"__range"}
    for target in panel["targets"]:
        assert names_in(target["expr"])
        assert names_in(target["expr"]) <= known_names()
        assert labels_in(target["expr"]) <= known_labels()
        assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables


def test_the_cluster_test_asks_for_the_numbers_behind_a_panel() -> None:
    assert asked("sum(a) - sum(b) or vector(0)") == "sum(a) - sum(b)"
    assert asked('sum by (c) (a) or label_replace(vector(0), "c", "none", "", "")') == "sum by (c) (a)"
    assert asked("sum(a + (b or a * 0))") == "sum(a + (b or a * 0))"
    drawn = [query for query in map(asked, queries()) if "vector(0)" in query]
    assert len(drawn) == 2, "looks that broke off, and attempts that continue"


def test_variables_use_existing_metrics() -> None:
    for dashboard in DASHBOARDS.values():
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                assert names_in(variable["query"]) <= known_names()


def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    rules = [{"record": f"query:{number}", "expr": chosen(query)} for number, query in enumerate(queries())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    check_rules(file, len(rules))


def test_a_heat_map_labels_its_rows_and_cells() -> None:
    (options,) = [panel["options"] for _, panel in PANELS if panel["type"] == "heatmap"]
    assert options["yAxis"]["axisLabel"] == "rank"
    assert options["tooltip"]["show"]


def test_panels_do_not_overlap() -> None:
    for dashboard in DASHBOARDS.values():
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert not cells & taken
            assert max(x for x, _ in cells) < 24
            taken |= cells


def test_grafanas_sidecar_finds_them_in_the_chart() -> None:
    maps = of_kind(objects({}), "ConfigMap")
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in maps)
    carried = {file: json.loads(text) for each in maps for file, text in each["data"].items()}
    assert carried == {f"memtune-{name}.json": dashboard for name, dashboard in DASHBOARDS.items()}
