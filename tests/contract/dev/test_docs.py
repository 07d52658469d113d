"""The documentation's links lead somewhere, and its tables match the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import fast_yaml
import pytest
from known_metrics import GOLDEN, RULES, recorded

from memtune.api import reasons
from memtune.controller.verdict import Verdict
from memtune.memory.constants import DEFAULT_TRUST
from memtune.planning.ladder import RUNGS
from memtune.wire import environment
from memtune.wire.exit_codes import EXIT_CODES
from memtune_cli.main import main
from memtune_operator.metrics import Metrics
from memtune_runner.rank.metrics import Collector

_ROOT = Path(__file__).resolve().parents[3]
_DOCS = _ROOT / "docs"
_PAGES = [
    *_ROOT.glob("*.md"),
    *(page for directory in ("docs", "charts", "bench", "examples") for page in (_ROOT / directory).glob("**/*.md")),
]
_LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def _anchors(page: Path) -> set[str]:
    """Return GitHub's anchors for the headings outside code blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _rows(page: str, header: str) -> Iterator[list[str]]:
    """Yield the rows of every table whose first column has this name, without code and link markup."""
    is_wanted = False
    for line in (_DOCS / page).read_text().splitlines():
        cells = [re.sub(r"`|\[|\]\(.*\)", "", cell).strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            is_wanted = False
        elif is_wanted and not set(cells[0]) <= set("-:"):
            yield cells
        elif cells[0] == header:
            is_wanted = True


def _first_column(page: str, header: str) -> list[str]:
    return sorted(row[0] for row in _rows(page, header))


def _families(directory: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and golden labels of each metric of the operator and the runner."""
    for owner, families in (("operator", Metrics().registry.collect()), ("runner", Collector(directory).collect())):
        for family in families:
            name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
            labels = [label for label in GOLDEN[owner][name] if label != "le"]
            yield name, family.type, ", ".join(labels)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{target} is not there"
        assert not anchor or anchor in _anchors(there), f"{target}#{anchor}: no such heading"


def test_the_index_has_every_page() -> None:
    linked = {target for target, _ in _LINK.findall((_DOCS / "README.md").read_text())}
    assert {page.name for page in _DOCS.glob("*.md")} - linked == {"README.md"}


def test_troubleshooting_has_every_reason_and_no_other() -> None:
    known = sorted(value for name, value in vars(reasons).items() if name.isupper())
    assert _first_column("troubleshooting.md", "reason") == known


def test_metrics_are_those_of_the_code(tmp_path: Path) -> None:
    assert sorted(tuple(row[:3]) for row in _rows("metrics.md", "metric")) == sorted(_families(tmp_path))
    assert _first_column("metrics.md", "recorded") == sorted(recorded())
    rules = [rule for group in fast_yaml.load(RULES.read_text())["groups"] for rule in group["rules"]]
    alerts = [[rule["alert"], rule["labels"]["severity"]] for rule in rules if "alert" in rule]
    assert sorted(row[:2] for row in _rows("metrics.md", "alert")) == sorted(alerts)


def test_the_memory_model_has_every_component() -> None:
    assert _first_column("memory-model.md", "component") == sorted(DEFAULT_TRUST)


def test_recovery_has_every_verdict_and_every_rung() -> None:
    assert _first_column("recovery.md", "verdict") == sorted(map(str, Verdict))
    # The ladder's order; a rung may have several steps.
    assert [row[0] for row in _rows("recovery.md", "rung")] == list(dict.fromkeys(rung.name for rung in RUNGS))


def test_integrations_has_every_variable_that_the_operator_sets_and_every_exit_code() -> None:
    assert _first_column("integrations.md", "variable") == sorted(environment.REFERABLE)
    codes = sorted((str(code), str(ending)) for ending, code in EXIT_CODES.items())
    assert sorted(tuple(row[:2]) for row in _rows("integrations.md", "exit code")) == codes


def test_getting_started_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (_DOCS / "getting-started.md").read_text()
    assert main(["plan", str(_ROOT / "examples" / "llama-7b-8gpu.yaml"), "--top", "5"]) == 0
    assert capsys.readouterr().out.rstrip("\n") in page


def test_the_dashboards_page_says_how_much_the_pictured_gpus_lose() -> None:
    rehearsal = (_ROOT / "tests" / "cluster" / "chart" / "test_dashboards.py").read_text()
    (lost,) = re.findall(r'"shrink": \{.*?"by": "(\d+%)"', rehearsal)
    assert f"the GPUs lose {lost} of theirs" in (_DOCS / "dashboards.md").read_text()
