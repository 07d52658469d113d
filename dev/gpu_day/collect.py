"""Collects the results of a GPU day: writes the accuracy pages and the memory snapshot fixtures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from dev.gpu_day.commands import COMMANDS
from dev.gpu_day.outcomes import runs_of
from dev.gpu_day.places import EMULATED, MEASURED, PREDICTIONS, ROOT, development_python, variables
from dev.gpu_day.prepare import predictions

_PAIRS, _FIXTURES = "pairs.jsonl", "fixtures.jsonl"


def collect(folder: Path, into: Path, models: Sequence[str] = ()) -> int:
    """Write gpu-day.md, gpu-truth.md and snapshots, as far as their inputs exist.

    Return 1 if there is no input or some input is unreadable.
    """
    files = {name: folder / f"{name}.jsonl" for name in COMMANDS}
    if not any(file.exists() for file in files.values()):
        names = " or ".join(f"{name}.jsonl" for name in COMMANDS)
        _say(f"{folder} has no {names}; bring there what the commands have left")
        return 1
    done, told = [], {}
    for name, file in files.items():
        told[name], is_whole = _runs(file)
        done.append(is_whole)
    if any(each["rehearsal"] for runs in told.values() for each in runs) and into.resolve() == ROOT / MEASURED:
        _say(f"{folder} is of a rehearsal: nothing was measured; name another directory by --into")
        return 1
    into.mkdir(parents=True, exist_ok=True)
    (into / "gpu-day.md").write_text("\n".join(_page(told, models)) + "\n", encoding="utf-8")
    done += [_write_pairs(folder, into / "gpu-truth.md", models), _unpack_fixtures(folder, into / "snapshots")]
    print(f"gpu-day: {into} has what could be made; tests/contract/bench/test_gpu_truth.py replays the snapshots")
    return int(not all(done))


def _say(sentence: str) -> None:
    print(f"gpu-day: {sentence}", file=sys.stderr)


def _runs(file: Path) -> tuple[list[dict[str, Any]], bool]:
    """The runs of a command, and whether all that was written of them can be read; say what is missing."""
    if not file.exists():
        _say(f"{file} is missing: command {file.stem} was not run")
        return [], True
    runs, unread = runs_of(file)
    if unread:
        _say(f"{file}: {unread} lines cannot be read, perhaps cut off; {file.stem}.log has what the command printed")
    return runs, not unread


def _write_pairs(folder: Path, page: Path, models: Sequence[str]) -> bool:
    if not (folder / _PAIRS).exists():
        _say(f"{folder / _PAIRS} is missing: no pair was measured, and {page.name} is not written")
        return True
    chosen = [word for each in models for word in ("--model", each)]
    # The page names the command that made it, without paths of this machine.
    if (ROOT / EMULATED).exists():
        chosen += ["--emulated", os.path.relpath(ROOT / EMULATED, ROOT)]
    words = [development_python(), "bench/gpu_truth.py", "--folder", os.path.relpath(folder, ROOT), *chosen]
    # Without a GPU it only prints the page of existing results.
    hidden = {**variables(), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(words, cwd=ROOT, env=hidden, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        _say(f"{folder / _PAIRS} makes no page: bench/gpu_truth.py ended with {done.returncode}")
        return False
    page.write_text(done.stdout, encoding="utf-8")
    return True


def _unpack_fixtures(folder: Path, snapshots: Path) -> bool:
    if not (folder / _FIXTURES).exists():
        _say(f"{folder / _FIXTURES} is missing: there are no snapshots to replay")
        return True
    unread = 0
    for line in (folder / _FIXTURES).read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            told = json.loads(line)
            name, content = Path(told["name"]).name, b64decode(told["gz"], validate=True)
        except (ValueError, KeyError, TypeError):
            unread += bool(line.strip())
            continue
        snapshots.mkdir(parents=True, exist_ok=True)
        (snapshots / name).write_bytes(content)
    if unread:
        _say(f"{folder / _FIXTURES}: {unread} lines cannot be read, perhaps cut off")
    return not unread


def _page(told: dict[str, list[dict[str, Any]]], models: Sequence[str]) -> Iterator[str]:
    measured = dict.fromkeys(gpu for runs in told.values() for run in runs if (gpu := _gpu(run)))
    parts = []
    for name, runs in told.items():
        for number, run in enumerate(runs, start=1):
            words = [name, *([f"run {number}"] if len(runs) > 1 else [])]
            words += [_gpu(run) or "unknown GPU"] if len(measured) > 1 else []
            parts += [(", ".join(words), part) for part in run["parts"]]
    yield from ("# A day with a GPU", "", "Made by `dev/gpu-day collect`.", "")
    yield "| command | part | outcome | passed | skipped | seconds | why tests were skipped |"
    yield "|---|---|---|--:|--:|--:|---|"
    for command, part in parts:
        numbers = " | ".join(str(part.get(key, "")) for key in ("passed", "skipped", "seconds"))
        reasons = "; ".join(f"{count}: {reason}" for reason, count in part.get("reasons", {}).items())
        yield f"| {command} | {part['name']} | {part['outcome']} | {numbers} | {reasons} |"
    for command, part in ((command, part) for command, part in parts if part.get("told")):
        yield from ("", f"## {part['name'].capitalize()} (command {command})", "", "| what | value |", "|---|--:|")
        yield from (f"| {key.replace('_', ' ')} | {_shown(value)} |" for key, value in part["told"].items())
    yield from ("", *_beforehand(models, measured))


def _gpu(run: dict[str, Any]) -> str | None:
    """The GPU on which a command ran."""
    return next((part["told"]["product"] for part in run["parts"] if "product" in (part.get("told") or {})), None)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else str(value)


def _beforehand(models: Sequence[str], measured: Collection[str]) -> Iterator[str]:
    """Check that the scored predictions are those made before the measurements, for these products."""
    path = ROOT / PREDICTIONS
    if not path.exists():
        yield "Nothing was predicted beforehand: `dev/gpu-day prepare` was not run in this checkout."
        return
    try:
        before = json.loads(path.read_text())
        told = predictions(before["gpu"], models)
    except (ValueError, KeyError) as error:
        yield f"What was predicted beforehand cannot be read: {error}."
        return
    product, now = told["product"], told["pairs"]
    moved = sorted(pair for pair in now if before["pairs"].get(pair) != now[pair])
    commit = before["commit"][:12]
    yield f"{len(before['pairs'])} pairs were predicted beforehand, for {before['gpu']} at commit {commit}."
    if others := [each for each in measured if each != product]:
        also = " also" if product in measured else ""
        yield f"That is {product}, and what is above was{also} measured on {' and '.join(others)}."
    yield f"The prediction has changed since for: {', '.join(moved) or 'none'}."
