"""Peaks by line of code, and peaks compared with a baseline."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from memtune.units import GIB, MIB
from memtune_cli.input import peak_baseline
from memtune_cli.input.peak_baseline import BaselinePeak, PeakError
from memtune_cli.views import memory_lines

_TORCH = {"filename": "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", "line": 9, "name": "forward"}
_OURS = {"filename": "/tmp/x/memtune_runner/emulated/dispatch_mode.py", "line": 56, "name": "__torch_dispatch__"}
_START = {"filename": "<frozen runpy>", "line": 88, "name": "_run_code"}


def _event(action: str, address: int, size: int, *frames: dict[str, Any]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "frames": list(frames)}


def _lines(tmp_path: Path, *events: dict[str, Any]) -> dict[str, int]:
    snapshot, of_another_gpu = tmp_path / "snapshot.pickle", [_event("alloc", 9, 60), _event("free_requested", 9, 60)]
    snapshot.write_bytes(pickle.dumps({"device_traces": [of_another_gpu if events else [], list(events)]}))
    return memory_lines.at_peak(snapshot, tmp_path)


def test_live_memory_at_the_peak_counts_under_the_innermost_line_outside_torch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n    hidden = self.up(x)\n")
    line = {"filename": str(script), "line": 2, "name": "forward"}
    library = {"filename": "/env/lib/python3.11/site-packages/peft/layer.py", "line": 7, "name": "forward"}
    lines = _lines(
        tmp_path,
        _event("alloc", 1, 50, _TORCH, _OURS, line, _START),
        _event("free_requested", 1, 50),
        _event("alloc", 2, 30, _TORCH, line),
        _event("alloc", 1, 40, _TORCH, library, line),
        _event("alloc", 3, 10),
        _event("free_completed", 2, 30),  # repeated when no stream uses it any more
        _event("free_requested", 2, 30),
        _event("alloc", 4, 20, line),
    )
    assert lines == {
        "peft/layer.py, forward": 40,
        "train.py, forward: hidden = self.up(x)": 30,
        memory_lines.WITHOUT_LINE: 10,
    }


def test_a_snapshot_without_allocations_has_no_lines(tmp_path: Path) -> None:
    assert _lines(tmp_path) == {}


def _peak(reserved: int, lines: dict[str, int] | None = None, ranks: int = 8, torch: str = "2.13.0") -> BaselinePeak:
    peaks = {"allocated": reserved - MIB, "active": reserved - MIB, "reserved": reserved}
    return BaselinePeak("h100-80gb", ranks, torch, peaks, lines or {})


def test_a_peak_within_the_tolerance_or_below_its_baseline_passes() -> None:
    base = _peak(100 * MIB)
    assert not list(peak_baseline.compare(_peak(101 * MIB), base, "reserved", 0.01))
    assert not list(peak_baseline.compare(_peak(10 * MIB), base, "reserved", 0.01))


def test_a_peak_that_grew_names_the_lines_that_hold_more() -> None:
    before = _peak(8 * GIB, {"a": GIB, "b": GIB, "c": 3 * GIB})
    now = _peak(11 * GIB, {"a": 3 * GIB, "b": GIB + MIB // 2, "c": GIB, "d": GIB}, torch="2.14.0")
    assert list(peak_baseline.compare(now, before, "reserved", 0.01)) == [
        "The reserved peak is 11.0 GiB, 3.0 GiB above its baseline of 8.0 GiB "
        "(tolerance 1.0%, rank 0 of 8 on h100-80gb).",
        "These lines hold more at the peak of allocated memory:",
        "  +2.0 GiB  a",
        "  +1.0 GiB  d",
        "torch is 2.14.0, the baseline was written with 2.13.0: that alone can change memory.",
        "If this is intended, run pytest --memtune-write-baseline and commit the file.",
    ]


def test_peaks_of_other_ranks_are_not_compared() -> None:
    first, *_ = peak_baseline.compare(_peak(GIB, ranks=1), _peak(GIB), "reserved", 0.01)
    assert first.startswith("The baseline is of rank 0 of 8 on h100-80gb, and this is one h100-80gb")


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    assert peak_baseline.read(file) == {}
    peaks = {"b": _peak(GIB, {"größer": MIB}), "a": _peak(2 * GIB)}
    peak_baseline.write(file, peaks)
    assert peak_baseline.read(file) == peaks
    assert list(peak_baseline.read(file)) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a baseline of MemTune"),
        ("[]", "is not a baseline of MemTune"),
        ('{"version": 1, "peaks": {"a": {"gpu": "h100-80gb"}}}', "is not a baseline of MemTune .*'ranks'"),
        ('{"version": 2, "peaks": {}}', "has version 2; this release of MemTune reads 1"),
    ],
)
def test_a_broken_baseline_says_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(text)
    with pytest.raises(PeakError, match=message):
        peak_baseline.read(file)
