"""After the day: the page of the pairs, the page of all else, and the fixtures, from what the commands have left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu_day.commands import COMMANDS
from gpu_day.places import MEASURED, PREDICTIONS, ROOT, development_python, variables
from gpu_day.prepare import predictions


def collect(folder: Path, into: Path, models: Sequence[str] = ()) -> int:
    """Write gpu-truth.md, gpu-day.md and snapshots; 1 where there is nothing to make them of."""
    kept = {name: json.loads(path.read_text()) for name in COMMANDS if (path := folder / f"{name}.json").exists()}
    if not kept:
        names = " or ".join(f"{name}.json" for name in COMMANDS)
        print(f"gpu-day: {folder} has no {names}; bring there what the commands have left", file=sys.stderr)
        return 1
    if any(each["rehearsal"] for each in kept.values()) and into.resolve() == ROOT / MEASURED:
        print(
            f"gpu-day: {folder} is of a rehearsal: nothing was measured; name another directory by --into",
            file=sys.stderr,
        )
        return 1
    told = {name: each["parts"] for name, each in kept.items()}
    into.mkdir(parents=True, exist_ok=True)
    (into / "gpu-truth.md").write_text(_page_of_pairs(folder, models), encoding="utf-8")
    (into / "gpu-day.md").write_text("\n".join(_page(told, models)) + "\n", encoding="utf-8")
    fixtures = folder / "fixtures.zip"
    if fixtures.exists():
        with zipfile.ZipFile(fixtures) as archive:
            archive.extractall(into / "snapshots")
    print(f"gpu-day: {into} has gpu-truth.md, gpu-day.md and snapshots; tests/unit/test_gpu_bench.py replays them")
    return 0


def _page_of_pairs(folder: Path, models: Sequence[str]) -> str:
    chosen = [word for each in models for word in ("--model", each)]
    # The page names the command that made it, which is no path of this machine.
    words = [development_python(), "bench/gpu_truth.py", "--folder", os.path.relpath(folder, ROOT), *chosen]
    # Without a GPU it measures nothing and prints the page of what is there.
    hidden = {**variables(), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(words, cwd=ROOT, env=hidden, check=True, stdout=subprocess.PIPE, text=True).stdout


def _page(told: dict[str, list[dict[str, Any]]], models: Sequence[str]) -> Iterator[str]:
    yield from ("# A day with a GPU", "", "Made by `dev/gpu-day collect`.", "")
    yield from ("| command | part | outcome | seconds |", "|---|---|---|--:|")
    for name, outcomes in told.items():
        for each in outcomes:
            yield f"| {name} | {each['name']} | {each['outcome']} | {each.get('seconds', '')} |"
    for each in (each for outcomes in told.values() for each in outcomes if each.get("told")):
        yield from ("", f"## {each['name'].capitalize()}", "", "| what | value |", "|---|--:|")
        yield from (f"| {key.replace('_', ' ')} | {_shown(value)} |" for key, value in each["told"].items())
    yield from ("", *_beforehand(models))


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else str(value)


def _beforehand(models: Sequence[str]) -> Iterator[str]:
    """Whether what is scored is what was predicted before anything was measured."""
    path = ROOT / PREDICTIONS
    if not path.exists():
        yield "Nothing was predicted beforehand: `dev/gpu-day prepare` was not run in this checkout."
        return
    before = json.loads(path.read_text())
    now = predictions(before["gpu"], models)
    moved = sorted(pair for pair in now if before["pairs"].get(pair) != now[pair])
    commit = before["commit"][:12]
    yield f"{len(before['pairs'])} pairs were predicted beforehand, for {before['gpu']} at commit {commit}."
    yield f"The prediction has changed since for: {', '.join(moved) or 'none'}."
