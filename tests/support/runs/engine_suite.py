"""The engine's contract for every plan, on CPU and CUDA: one global batch, one loss curve.

The reference is a plain training loop without the engine: one process, one batch, no micro-batches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import IO, Any, NamedTuple

import pytest
import torch
from engine_ranks import LR, MAX_NORM, STEPS, decaying, decoder, global_batches, loss_of
from separate_process import run_in_separate_process
from warm_environment import read_by_libraries
from warm_pythons import LIBRARIES, WarmPython

from memtune.wire.report import Device

TIMEOUT_SECONDS = 540
_PROGRAM = Path(__file__).with_name("engine_ranks.py")


class Curve(NamedTuple):
    losses: list[float]
    norms: list[float]


class Case(NamedTuple):
    """Saved under one plan by some ranks, resumed under another by others."""

    saved: str
    saved_world: int
    wanted: str
    world: int


@cache
def reference(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Curve:
    """A plain loop; in a shorter format, plain autocast over fp32 weights."""
    return plain_loop(dtype, device) if device == "cpu" else run_in_separate_process(plain_loop, dtype, device)


def plain_loop(dtype: torch.dtype, device: str, steps: int = STEPS) -> Curve:
    """The loop that every plan is compared with."""
    torch.set_num_threads(1)
    model = decoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    scheduler = decaying(optimizer)
    curve = Curve([], [])
    for batch in global_batches(steps):
        with torch.autocast(device, dtype=dtype, enabled=dtype is not torch.float32):
            loss = loss_of(model, {name: each.to(device) for name, each in batch.items()})
        loss.backward()
        curve.norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
        curve.losses.append(loss.item())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return curve


def trained_by_ranks(
    place: Path, world: int, tasks: list[str], device: Device = Device.VIRTUAL, **variables: str
) -> dict[str, Any]:
    """The result of each task of engine_ranks, from one start of the processes."""
    place.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **variables}
    ranks = [_started(place, rank, world, device, tasks, environment) for rank in range(world)]
    try:
        for each in ranks:
            each.wait(TIMEOUT_SECONDS)
    finally:
        for each in ranks:
            each.kill()
            each.wait(TIMEOUT_SECONDS)
    found = place / "results.json"
    assert found.exists(), f"no rank got anywhere:\n{(place / 'rank-0.log').read_text()[-4000:]}"
    done: dict[str, Any] = json.loads(found.read_text())
    return done


def _started(
    place: Path, rank: int, world: int, device: Device, tasks: list[str], variables: dict[str, str]
) -> subprocess.Popen[bytes] | WarmPython:
    """Start a rank: on a virtual GPU forked from a Python that has imported the libraries."""
    words = [str(_PROGRAM), str(place), str(rank), str(world), str(device), *tasks]
    log = (place / f"rank-{rank}.log").open("w+b")
    if device is Device.VIRTUAL:
        return forked(words, variables, log)
    with log:
        return subprocess.Popen([sys.executable, *words], env=variables, stdout=log, stderr=subprocess.STDOUT)


def forked(words: list[str], variables: dict[str, str], log: IO[bytes] | None = None) -> WarmPython:
    """A rank forked from the Python that has imported libraries for other trainings as well."""
    return WarmPython(words, variables, LIBRARIES, log, read=read_by_libraries())


def equals_the_reference(found: dict[str, Any], device: str = "cpu") -> None:
    """In fp32 a plan has the same loss as one rank with one batch."""
    expected = reference(device=device)
    assert found["losses"] == pytest.approx(expected.losses, rel=1e-5)
    assert found["norms"] == pytest.approx(expected.norms, rel=1e-4)
    assert found["skipped"] == 0


def stays_close(found: dict[str, Any], plan: str, device: str = "cpu") -> None:
    """In shorter formats it deviates from fp32 no more than plain autocast does."""
    losses, expected = found["losses"], reference(device=device)
    assert losses == pytest.approx(expected.losses, rel=0.02)
    assert fmean(losses) == pytest.approx(fmean(expected.losses), rel=0.005)
    plain = reference(torch.bfloat16 if plan.startswith("bf16") else torch.float16, device)
    # No worse than plain autocast, except for its own rounding noise, a tenth of a percent.
    assert _deviation(losses, expected.losses) <= _deviation(plain.losses, expected.losses) + 0.001
    assert found["skipped"] == 0


def _deviation(losses: list[float], expected: list[float]) -> float:
    return fmean(abs(ours / theirs - 1) for ours, theirs in zip(losses, expected, strict=True))
