"""`memtune timeline`: its text, its drawing and its errors."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from small_traces import small_trace

from memtune.memory.replay import Replayer
from memtune.plans.plan import Plan
from memtune.wire.trace import dumps
from memtune_cli.main import main

PLAN = "fp32-ddp-full-mb16x2"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    file = tmp_path / "small.trace.json"
    file.write_text(dumps(small_trace()))
    return str(file)


def test_the_page_names_every_kind_and_phase(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", trace, "--plan", PLAN]) == 0
    printed = capsys.readouterr().out
    for word in ("Small", PLAN, "weights", "optimizer states", "activations", "forward", "backward", "step"):
        assert word in printed


def test_json_has_the_peaks_of_the_replay(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", trace, "--plan", PLAN, "--gpus-per-node", "2", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    replayed = Replayer(small_trace(), gpus_per_node=2).replay(Plan.parse(PLAN))
    assert document["version"] == 1
    assert document["phases"]["backward"]["reservedBytes"] == replayed.phases["backward"].reserved
    assert sum(document["atPeakBytes"].values()) <= replayed.peak.requested


@pytest.mark.parametrize(("name", "beginning"), [("step.png", b"\x89PNG"), ("step.svg", b"<?xml")])
def test_it_draws(name: str, beginning: bytes, trace: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["timeline", trace, "--plan", PLAN, "--plot", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(beginning)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_web_page_needs_nothing_but_itself(trace: str, tmp_path: Path) -> None:
    file = tmp_path / "step.html"
    assert main(["timeline", trace, "--plan", PLAN, "--plot", str(file)]) == 0
    tags = _Tags()
    tags.feed(file.read_text())
    assert tags.seen.count("polygon") == 6
    assert not tags.references
    data = re.search(r"const shown = (\{.*\});", file.read_text())
    assert data is not None
    assert len(json.loads(data[1])["kinds"]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan", "bf17-z2-sel-mb4x8"], "'bf17' is not one of"),
        (["--plan", "bf16-z2-sel-mb4x8-eager"], "the attention and the loss of the model's own code"),
        (["--plan", PLAN, "--plot", "nowhere/step.html"], "--plot: nowhere/step.html cannot be written"),
    ],
)
def test_bad_input_is_reported(
    arguments: list[str],
    message: str,
    trace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["timeline", trace, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text("kind: MemoryTunedJob")
    assert main(["timeline", str(tmp_path / "job.yaml"), "--plan", PLAN]) == 2
    assert "this is no trace" in capsys.readouterr().err
    assert main(["timeline", str(tmp_path / "nothing.json"), "--plan", PLAN]) == 2
    assert "cannot be read" in capsys.readouterr().err
