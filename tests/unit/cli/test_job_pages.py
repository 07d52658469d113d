"""The pages that show a job's view, against golden texts, on screens of all widths, and as HTML.

After a change that is meant, write the golden files anew with ``MEMTUNE_WRITE_GOLDEN=1 pytest tests/unit/cli``.
"""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from job_with_history import NOW_SECONDS, TOTAL_BYTES, ended_well, job_with_history, still_probing, two_objectives

from memtune.units import parse_bytes
from memtune_cli.commands.status import document_of
from memtune_cli.input.job_view import job_view_of
from memtune_cli.input.prometheus import Series
from memtune_cli.views.candidates import costs, known_plans
from memtune_cli.views.job_page import page
from memtune_cli.views.live_page import live_page
from memtune_cli.views.next_step import next_step
from memtune_cli.views.ranks import Ranks, Reading
from memtune_cli.views.report_page import html_page
from memtune_cli.views.screen import Screen

GOLDEN = Path(__file__).parents[2] / "golden"
PLAIN = Screen(width=100, colours=False, unicode=True)


def ranks(count: int = 8) -> Ranks:
    """Ranks that have been looked at twice, the last one fuller than the others."""
    found = Ranks("llama-7b-train-2")
    for steps in (18, 20):
        found.seen(steps * 31.7, [Reading(rank, _values(rank, steps)) for rank in range(count)])
    return found


def _values(rank: int, steps: int) -> dict[str, float]:
    return {
        "hbm_total_bytes": TOTAL_BYTES,
        "hbm_reserved_bytes": 55e9 + rank * 0.4e9,
        "hbm_non_torch_bytes": 1.5e9,
        "hbm_peak_reserved_bytes": 59e9 + rank * 0.4e9,
        "hbm_peak_fragmentation_ratio": 0.04,
        "allocator_retries_total": float(rank == 7),
        "tokens_total": steps * 131_072.0,
        "step_seconds_count": steps,
        "step_seconds_sum": steps * 31.7,
    }


def same_as_golden(name: str, text: str) -> None:
    golden = GOLDEN / name
    if os.environ.get("MEMTUNE_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("recovered", job_with_history()),
        ("probing", still_probing()),
        ("succeeded", ended_well()),
        ("front", two_objectives()),
        ("priced", ended_well(gpuHourPrice=1.25)),
    ],
)
def test_the_page_of_status_is_the_golden_one(name: str, job: dict[str, Any]) -> None:
    same_as_golden(f"status-{name}.txt", "\n".join([*page(PLAIN, job_view_of(job), NOW_SECONDS), ""]))


@pytest.mark.parametrize(("name", "job"), [("training", job_with_history()), ("probing", still_probing())])
def test_the_live_page_is_the_golden_one(name: str, job: dict[str, Any]) -> None:
    lines = live_page(PLAIN, job_view_of(job), ranks(), NOW_SECONDS, "no answer from the API server; trying again")
    same_as_golden(f"live-{name}.txt", "\n".join([*lines, ""]))


def test_the_document_of_status_is_the_golden_one() -> None:
    same_as_golden("status.json", json.dumps(document_of(job_view_of(job_with_history())), indent=1) + "\n")


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("job", [job_with_history(gpuHourPrice=1.25), still_probing(), ended_well(), two_objectives()])
def test_pages_fit_the_screen(width: int, job: dict[str, Any]) -> None:
    screen, view = Screen(width, colours=False, unicode=False), job_view_of(job)
    for lines in (page(screen, view, NOW_SECONDS), live_page(screen, view, ranks(), NOW_SECONDS)):
        assert [line for line in lines if len(line) > width] == []


def test_the_fullest_of_many_ranks_are_shown() -> None:
    lines = live_page(PLAIN, job_view_of(job_with_history()), ranks(128), NOW_SECONDS)
    shown = [int(match[1]) for line in lines if (match := re.match(r" +(\d+)  [█·]+ ", line))]
    assert shown == list(range(112, 128))
    assert lines[-1] == "  and 112 more, none with a higher peak than 98.1 GiB"


def test_an_empty_job_has_pages() -> None:
    view = job_view_of({"metadata": {"name": "new", "namespace": "default"}})
    assert page(PLAIN, view, NOW_SECONDS)[0] == "default/new  Pending"
    assert live_page(PLAIN, view, None, NOW_SECONDS)
    assert "MemoryTunedJob · default" in html_page(view, [], [], [], NOW_SECONDS)


class Tags(HTMLParser):
    """Whether every tag that opens is closed, and whatever would be fetched from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        names = ("src", "href", "srcset", "data", "action")
        self.fetched += [f"{tag} {name}" for name, _ in attributes if name in names]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """It closes itself."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def report(job: dict[str, Any], *series: Series) -> str:
    view = job_view_of(job)
    plans = known_plans(view)
    return html_page(view, plans, costs(view, plans), series, NOW_SECONDS)


def test_a_front_plan_without_a_speed_is_called_not_measured() -> None:
    job = two_objectives()
    job["status"]["probes"] = [{**probe, "tokensPerSecond": 0} for probe in job["status"]["probes"]]
    rows = [line for line in page(PLAIN, job_view_of(job), NOW_SECONDS) if "not measured" in line]
    assert len(rows) == 2


def test_a_report_joins_the_plans_of_the_front() -> None:
    text = report(two_objectives())
    assert "The line joins the measured plans that no other one beats in both objectives." in text
    assert text.count('class="front"') == 1
    assert 'class="front"' not in report(job_with_history())
    assert "The line joins" not in report(job_with_history())


def test_a_report_says_which_knobs_matter() -> None:
    text = report(job_with_history())
    section = text[text.index("Which knobs matter") : text.index("Predicted against measured")]
    rows = re.findall(
        r"<tr><td><code>(\w+)</code></td><td>(.*?)</td><td.*?>(\d+)%</td><td.*?>(\d+)%</td></tr>", section
    )
    assert {knob: choices for knob, choices, *_ in rows} == {
        "sharding": "fsdp, fsdpsgo, z0, z1, z2, z3",
        "checkpointing": "full, none, selective",
        "micro_batch": "1, 2, 4, 8, 16, 32",
    }
    shares = {knob: (int(memory), int(speed)) for knob, _, memory, speed in rows}
    assert max(shares, key=lambda knob: shares[knob][0]) == rows[0][0] == "micro_batch"
    assert max(shares, key=lambda knob: shares[knob][1]) == "checkpointing"
    assert "Which knobs matter" not in html_page(job_view_of(job_with_history()), [], [], [], NOW_SECONDS)


def test_a_report_has_the_cost_per_million_tokens_of_each_speed() -> None:
    text = report(ended_well(gpuHourPrice=1.25))
    section = text[text.index("What a million tokens cost") : text.index("What it took, and")]
    assert "At $1.25 a GPU-hour on 8 GPUs" in section
    rows = re.findall(
        r"<tr><td>([\w ]+)</td><td><code>.*?</code></td><td.*?>([\d,]+)</td><td.*?>\$(.*?)</td></tr>", section
    )
    # Eight GPUs at $1.25 are $10 an hour: a million tokens at 34,012 a second take 29.4 s, which is $0.0817.
    assert ("probe 2", "34,012", "0.0817") in rows
    assert [what for what, *_ in rows] == ["predicted", "probe 1", "probe 2", "attempt 1", "attempt 2"]
    assert '<b class="">$0.0840</b><span>A million tokens</span>' in text
    assert "illion tokens" not in report(ended_well())


def test_the_document_of_status_has_the_cost_of_each_run_that_measured_its_speed() -> None:
    runs = document_of(job_view_of(job_with_history(gpuHourPrice=1.25)))["status"]
    assert [probe.get("costPerMillionTokens") for probe in runs["probes"]] == [0.0839182, 0.0816705, None]
    assert "costPerMillionTokens" not in json.dumps(document_of(job_view_of(job_with_history())))


def test_a_job_that_cannot_be_read_has_no_costs() -> None:
    job = job_with_history(gpuHourPrice=1.25)
    job["spec"] = {}
    assert job_view_of(job).costs == []


def test_the_next_step_mentions_the_allowed_slowdown() -> None:
    job = still_probing()
    job["spec"]["tuning"] |= two_objectives()["spec"]["tuning"]
    assert "is launched, or a smaller one that is at most 5% slower" in next_step(job_view_of(job))


def test_a_report_stands_alone() -> None:
    text = report(ended_well())
    tags = Tags(text)
    assert (tags.open, tags.fetched) == ([], [])
    assert "<script" not in text
    assert not re.search(r"url\(|@import|https?://", text)
    assert text.count("<svg") == 5
    assert "The probes that were made" in text


@pytest.mark.parametrize("size", ["16Gi", "80Gi", "640Gi"])
def test_nothing_is_drawn_outside_of_its_picture(size: str) -> None:
    job = ended_well()
    job["spec"]["resources"] = {"gpusPerNode": 8, "gpuMemory": size}
    for part in (*job["status"]["probes"], *job["status"]["attempts"]):
        part["peakBytes"] = part["peakBytes"] | {"total": parse_bytes(size)}
    for picture in re.findall(r"<svg .*?</svg>", report(job), re.DOTALL):
        width = float(re.search(r'viewBox="0 0 (\d+)', picture)[1])  # type: ignore[index]  # each has one
        places = [float(place) for place in re.findall(r' c?x[12]?="([-\d.]+)"', picture)]
        assert min(places) >= 0
        assert max(places) <= width


def test_each_run_is_drawn_against_its_gpus_memory() -> None:
    job = ended_well()
    last = job["status"]["attempts"][-1]
    last["peakBytes"] = {name: size // 2 for name, size in last["peakBytes"].items()}
    text = report(job)
    assert "GPU 79.2 GiB, then 39.6 GiB" in text
    assert "too tight:" not in text
    status = "\n".join(page(PLAIN, job_view_of(job), NOW_SECONDS))
    assert "measured  ███████████████████████████···········   57.0 GiB +2.2%" in status, "as before it shrank"


def test_a_report_has_the_series_of_prometheus() -> None:
    start = NOW_SECONDS - 600
    line = Series("llama-7b-train-2", tuple((start + second, 5e10 + second * 1e6) for second in range(0, 600, 15)))
    assert 'class="series0"' in report(job_with_history(), line)
    assert 'class="series0"' not in report(job_with_history())


def test_the_text_of_a_status_is_escaped_in_a_report() -> None:
    evil = "<script>alert('x')</script>"
    attempts = [{**attempt, "message": evil} for attempt in job_with_history()["status"]["attempts"]]
    conditions = [{**each, "message": evil} for each in job_with_history()["status"]["conditions"]]
    text = report(job_with_history(message=evil, attempts=attempts, conditions=conditions))
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert Tags(text).open == []
