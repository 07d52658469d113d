"""Recording rules and alerts: tested with promtool, each alert with a runbook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fast_yaml
import pytest
from helm_chart import ROOT, objects, only
from known_metrics import RULES, known_labels, known_names, labels_in, names_in
from promtool import check_rules, try_rules

UNIT_TESTS = Path(__file__).with_name("memtune_test.yaml")
RUNBOOKS = ROOT / "docs" / "runbooks"
GROUPS: list[dict[str, Any]] = fast_yaml.load(RULES.read_text())["groups"]
ALL_RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in ALL_RULES if "alert" in rule}
TESTS: list[dict[str, Any]] = fast_yaml.load(UNIT_TESTS.read_text())["tests"]


def test_prometheus_reads_the_rules() -> None:
    check_rules(RULES, len(ALL_RULES))


def test_the_rules_pass_their_unit_tests() -> None:
    try_rules(UNIT_TESTS)


def test_each_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    cases = [case for test in TESTS for case in test.get("alert_rule_test", ())]
    fires = {case["alertname"] for case in cases if case["exp_alerts"]}
    keeps_still = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert fires == set(ALERTS) == keeps_still


@pytest.mark.parametrize("rule", ALL_RULES, ids=[rule.get("alert") or rule["record"] for rule in ALL_RULES])
def test_rules_use_existing_metrics(rule: dict[str, Any]) -> None:
    assert names_in(rule["expr"])
    assert names_in(rule["expr"]) <= known_names()
    assert labels_in(rule["expr"]) <= known_labels()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_links_a_runbook_that_says_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    # No runbook_url: a pager shows it alone, and a path would be no link.
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/runbooks/{name}.md"
    page = (RUNBOOKS / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    for part in ("**Is it urgent?**", "**Look**", "**Do**"):
        assert part in page


def test_every_runbook_has_an_alert_and_working_links() -> None:
    pages = sorted(RUNBOOKS.glob("*.md"))
    assert [page.stem for page in pages] == sorted(ALERTS)
    for page in pages:
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            assert (RUNBOOKS / link).is_file(), f"{page.name}: {link}"


def test_the_chart_carries_the_rules_as_they_are() -> None:
    values = {"metrics": {"prometheusRule": {"create": "always"}}}
    assert only(objects(values), "PrometheusRule")["spec"] == {"groups": GROUPS}


def test_the_chart_sets_the_address_of_the_runbooks() -> None:
    values = {"metrics": {"prometheusRule": {"create": "always", "runbookBaseUrl": "https://wiki.example/memtune/"}}}
    found = [rule for group in only(objects(values), "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    urls = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in found if "alert" in rule}
    assert urls == {name: f"https://wiki.example/memtune/docs/runbooks/{name}.md" for name in ALERTS}
