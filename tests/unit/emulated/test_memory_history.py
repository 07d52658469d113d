"""Analysing a memory history: what held the memory at the peak, and what a step is."""

from __future__ import annotations

from typing import Any

import pytest

from memtune_runner.emulated.memory_history import KINDS, Change, _last_step, peak_history

USER = {"filename": "/home/me/train.py", "line": 7, "name": "<module>"}
LIBRARY = {"filename": "/x/site-packages/transformers/models/llama.py", "line": 40, "name": "forward"}
TORCH = {"filename": "/x/site-packages/torch/nn/functional.py", "line": 1, "name": "linear"}
OURS = {"filename": "/x/memtune_runner/emulated/dispatch_mode.py", "line": 2, "name": "__torch_dispatch__"}
# Weights in init, then two steps: forward's memory lives until the backward pass, gradients until the step.
CHANGES = [
    Change(10, "init"), Change(20, "forward"), Change(30, "backward"), Change(40, "optimizer-step"), Change(45, "save"),
    Change(50, "optimizer-step"), Change(60, "forward"), Change(70, "backward"), Change(80, "optimizer-step"),
]  # fmt: skip


def alloc(time: int, addr: int, size: int, *frames: dict[str, Any]) -> dict[str, Any]:
    return {"action": "alloc", "addr": addr, "size": size, "time_us": time, "frames": list(frames)}


def free(time: int, addr: int, size: int) -> dict[str, Any]:
    return {"action": "free_completed", "addr": addr, "size": size, "time_us": time, "frames": []}


def step(begin: int) -> list[dict[str, Any]]:
    return [
        alloc(begin + 5, 2, 50, OURS, TORCH, LIBRARY, USER),
        {"action": "free_requested", "addr": 2, "size": 50, "time_us": begin + 14, "frames": []},
        alloc(begin + 14, 3, 30),
        free(begin + 15, 2, 50),
        free(begin + 28, 3, 30),
    ]


EVENTS = [alloc(5, 1, 100, TORCH, USER), *step(10), *step(50)]


def test_the_largest_are_those_that_lived_when_most_did() -> None:
    found = peak_history(EVENTS, CHANGES)
    assert (found["tensorBytes"], found["phase"], found["isWhole"]) == (180, "backward", True)
    assert found["largest"] == [
        {"line": "/home/me/train.py:7", "within": "", "phase": "init", "tensors": 1, "bytes": 100},
        {
            "line": "/home/me/train.py:7",
            "within": "/x/site-packages/transformers/models/llama.py:40 forward",
            "phase": "forward",
            "tensors": 1,
            "bytes": 50,
        },
        {"line": "no line of Python", "within": "", "phase": "backward", "tensors": 1, "bytes": 30},
    ]


def test_the_step_is_the_last_whole_one_and_a_save_is_no_part_of_it() -> None:
    found = peak_history(EVENTS, CHANGES)["step"]
    assert found["kinds"] == list(KINDS)
    of = {name: [point[KINDS.index(name)] for point in found["points"]] for name in ("init", "forward", "backward")}
    assert of == {"init": [100] * 4, "forward": [50, 50, 0, 0], "backward": [0, 30, 30, 0]}
    assert found["marks"] == [
        {"point": 0, "phase": "forward"},
        {"point": 1, "phase": "backward"},
        {"point": 3, "phase": "optimizer-step"},
    ]


def test_a_gpu_on_which_nothing_comes_or_goes_is_level_in_a_step() -> None:
    found = peak_history([alloc(5, 1, 100, TORCH, USER)], CHANGES)["step"]
    assert [sum(point) for point in found["points"]] == [100]
    assert {mark["point"] for mark in found["marks"]} == {0}


def test_a_long_step_is_thinned_to_its_highest_points() -> None:
    many = [each for n in range(4000) for each in (alloc(15, 9, n, USER), free(15, 9, n))]
    points = peak_history([*many, *step(10)], CHANGES[:4])["step"]["points"]
    assert len(points) <= 1600
    assert max(map(sum, points)) == 3999


def test_a_history_without_its_beginning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memtune_runner.emulated.memory_history.MOST_EVENTS", 3)
    assert peak_history(EVENTS, CHANGES)["isWhole"] is False


@pytest.mark.parametrize(
    ("phases", "found"),
    [
        ("init", None),
        ("init forward backward", None),
        ("init forward backward optimizer-step", (1, 3)),
        ("init forward backward forward backward optimizer-step", (1, 5)),
        ("init optimizer-step forward backward optimizer-step save optimizer-step forward", (2, 4)),
        ("forward backward optimizer-step evaluation optimizer-step forward backward", (0, 2)),
    ],
)
def test_a_step_ends_with_the_optimizer_after_a_backward_pass(phases: str, found: tuple[int, int] | None) -> None:
    assert _last_step(phases.split()) == found


def test_an_empty_history_has_no_page() -> None:
    found = peak_history([], [Change(1, "init")])
    assert (found["tensorBytes"], found["largest"], found["step"]) == (0, [], None)
