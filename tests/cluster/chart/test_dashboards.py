"""Every panel of every dashboard shows a real job, which a real Prometheus scrapes; seen in a real browser.

MEMTUNE_SCREENSHOTS=docs/images keeps the pictures there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from browser import Page, browser
from dashboards import NAMES, ask, silent_queries
from helm_release import NAMESPACED, Release
from operator_process import Jobs
from pods import eventually
from rehearsals import quickstart

from dev.cluster.layout import MONITORING_LOCK
from dev.cluster.monitoring import dashboards
from dev.cluster.state import supervisor_pid

_WIDTH = 1440
_PICTURED_SECONDS = 60
# What the page tells of each panel.
_PANELS = """
[...document.querySelectorAll("[data-panel]")].map(({dataset}) => [dataset.panel, dataset.state, dataset.error ?? ""])
"""


@pytest.fixture
def monitoring(devcluster: Callable[..., str]) -> Iterator[None]:
    """Prometheus and the page; what was there before stays."""
    was_up = supervisor_pid(MONITORING_LOCK) is not None
    devcluster("dashboards")
    yield
    if not was_up:
        devcluster("prometheus", "--stop")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tmp_path / "profile") as opened:
        yield opened


@pytest.mark.xdist_group("devcluster")
@pytest.mark.slow
@pytest.mark.usefixtures("monitoring")
def test_every_panel_shows_a_job_that_recovers(
    namespace: str, release: Release, jobs: Jobs, page: Page, tmp_path: Path
) -> None:
    kept = os.environ.get("MEMTUNE_SCREENSHOTS")
    release.install(NAMESPACED)
    job = on_two_gpus(quickstart(tmp_path / "checkpoints"))
    jobs.apply(for_longer(job) if kept else job)
    eventually(lambda: f"{namespace}/quickstart-train-2" in scraped_runs(), "the second attempt to be scraped", 300)
    eventually(lambda: not silent_queries(namespace), "every query of every panel to have an answer")
    assert unhealthy_rules() == []

    if kept:
        eventually(
            lambda: seconds_scraped(namespace, "quickstart-train-2") > _PICTURED_SECONDS, "a minute to be seen", 600
        )

    pictures = Path(kept or tmp_path)
    for name in NAMES:
        page.open(address(name, namespace), _WIDTH)
        panels = eventually(lambda: settled(page), f"the panels of {name}")
        assert [panel for panel in panels if panel[1:] != ["drawn", ""]] == []
        page.photograph(pictures / f"dashboard-{name}.png")
    assert page.errors == []


def on_two_gpus(job: dict[str, Any]) -> dict[str, Any]:
    """Small, with two rows in its heat map, and with the loss of memory that the example has."""
    spec = job["spec"]
    shrinking = {"gpuMemory": "96Mi", "gpusPerNode": 2, "shrink": {"afterStep": 12, "by": "55%"}}
    smaller = {"resources": {**spec["resources"], **shrinking}, "training": {**spec["training"], "globalBatchSize": 16}}
    return {**job, "spec": {**spec, **smaller}}


def for_longer(job: dict[str, Any]) -> dict[str, Any]:
    """The same micro-batches, more of them: attempts of a minute and more, where the test needs a few seconds."""
    training = {**job["spec"]["training"], "globalBatchSize": 512}
    return {**job, "spec": {**job["spec"], "training": training}}


def seconds_scraped(namespace: str, run: str) -> float:
    """How much of a run Prometheus has seen."""
    query = f'max(time() - min_over_time(timestamp(memtune_plan_info{{namespace="{namespace}",run="{run}"}})[15m:5s]))'
    return max((float(series["value"][1]) for series in ask("query", query=query)["result"]), default=0.0)


def scraped_runs() -> set[str]:
    found = ask("query", query="memtune_plan_info")["result"]
    return {f"{series['metric']['namespace']}/{series['metric']['run']}" for series in found}


def unhealthy_rules() -> list[str]:
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert rules, "the chart's rules are loaded"
    return [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]


def address(name: str, namespace: str) -> str:
    state = {"from": "now-5m", "to": "now", "refresh": "1h", "var-namespace": namespace}
    return f"{dashboards.URL}/d/memtune-{name}?{urlencode(state)}"


def settled(page: Page) -> list[list[str]]:
    """Each panel with its state and its error; nothing as long as one is loading."""
    panels: list[list[str]] = page.evaluate(_PANELS)
    return [] if any(state == "loading" for _, state, _ in panels) else panels
