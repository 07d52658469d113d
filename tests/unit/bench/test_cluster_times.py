"""The table of how long the cluster takes, from commands that take no time."""

from __future__ import annotations

import cluster_times
import pytest
from cluster_times import Row, measure, table


def test_the_table_has_the_median_and_the_slowest() -> None:
    assert table([Row("`down`", [3.04, 1.0, 2.0]), Row("the smoke tests", [60.0, 61.0], failures=1)]).splitlines() == [
        "| what | times | failed | median | slowest |",
        "|---|--:|--:|--:|--:|",
        "| `down` | 3 | 0 | 2.0 s | 3.0 s |",
        "| the smoke tests | 2 | 1 | 60.5 s | 61.0 s |",
    ]


def test_every_cluster_that_is_started_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    def timed(*command: str) -> tuple[float, int]:
        did.append(" ".join(command).split("devcluster ")[-1].split("cluster/")[-1])
        return 1.0, int(did[-1] == "test_smoke.py" and did.count("test_smoke.py") == 2)

    monkeypatch.setattr(cluster_times, "timed", timed)
    rows = list(measure(clusters=2, smokes=3))
    one, two = [["up --nodes 1", "up", "down"], ["up --nodes 2", "up", "down"]]
    assert did == [*one, *one, *two, *two, "up --nodes 2", *["test_smoke.py"] * 3, "down"]
    assert [(len(row.seconds), row.failures) for row in rows] == [(2, 0)] * 6 + [(3, 1)]


def test_a_command_that_fails_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_times, "timed", lambda *_: (1.0, 1))
    with pytest.raises(SystemExit, match="`devcluster up --nodes 1` failed with exit code 1"):
        next(measure(1, 1))
