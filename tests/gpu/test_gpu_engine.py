"""The engine's contract suite on CUDA, with one rank and with as many as there are GPUs; what it saves goes on."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_requirements import IS_EMULATED
from engine_ranks import GLOBAL_BATCH, SHORT_BATCH, STEPS
from engine_suite import equals_the_reference, reference, stays_close, trained_by_ranks

from memtune.wire.report import Device

# Each with the micro-batch and the accumulation that make the suite's global batch.
EXACT = ["fp32-ddp-every2-{}", "fp32-fsdp-none-{}", "fp32-z0-none-{}", "fp32-z1-sel-{}", "fp32-z3-full-{}"]
CLOSE = ["bf16-ddp-full-{}", "bf16-fsdp-sel-{}-g32", "bf16-z2-none-{}", "fp16-fsdp-none-{}-g32", "fp16-z3-none-{}"]
# Saved under the first, resumed from under the second.
SAVED = [
    ("fp32-fsdp-none-{}", "fp32-fsdp-full-{}-oparam"),
    ("fp32-fsdp-none-{}", "fp32-ddp-none-{}"),
    ("fp32-z1-none-{}", "fp32-z2-full-{}-oopt"),
    ("fp32-z1-none-{}", "fp32-z3-full-{}"),  # converted
    ("fp32-z3-none-{}", "fp32-z3-none-{}-oparam"),
]
WORLDS = ["one", "all"]
compares_losses = pytest.mark.skipif(
    IS_EMULATED, reason="it compares losses of several steps, and an emulated GPU computes no gradients"
)


def ranks(world: str) -> int:
    """As many as share the global batch evenly, each with a GPU of its own."""
    if world == "one":
        return 1
    found = next(each for each in (8, 4, 2, 1) if each <= torch.cuda.device_count())
    if found == 1:
        pytest.skip("there is one GPU, and the suite has run on it")
    return found


def plan(form: str, world: int) -> str:
    rows = GLOBAL_BATCH // world
    micro_batch = min(rows, 2)
    return form.format(f"mb{micro_batch}x{rows // micro_batch}")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@cache
def results(world: int, directory: Path) -> dict[str, Any] | Exception:
    """What every task came to: one start of the processes for all of them. Of one that hangs, those before it count."""
    saved = {before for before, _ in SAVED}
    tasks = [plan(form, world) for form in EXACT + CLOSE]
    tasks += [_task(form, "to", form, world, directory) for form in sorted(saved)]
    tasks += [_task(after, "from", before, world, directory) for before, after in SAVED]
    place = directory / str(world)
    try:
        return trained_by_ranks(place, world, tasks, Device.CUDA)
    except Exception as error:
        found = place / "results.json"
        return json.loads(found.read_text()) if found.exists() else error


def _task(form: str, word: str, saved: str, world: int, directory: Path) -> str:
    return f"{plan(form, world)} {word} {directory}/{world}-{plan(saved, world)}"


def result(world: int, task: str, directory: Path) -> dict[str, Any]:
    every = results(world, directory)
    if isinstance(every, Exception):
        raise every
    found: dict[str, Any] = every.get(task, {"error": "the ranks did not get that far"})
    assert "error" not in found, found["error"]
    return found


@pytest.mark.parametrize("form", EXACT + CLOSE)
@pytest.mark.parametrize("world", WORLDS)
def test_every_plan_trains_to_its_end_from_the_loss_of_the_reference(world: str, form: str, directory: Path) -> None:
    count = ranks(world)
    short = plan(form, count)
    found = result(count, short, directory)
    assert found["losses"][0] == pytest.approx(reference(device="cuda").losses[0], rel=1e-5 if form in EXACT else 0.02)
    assert (len(found["losses"]), found["skipped"]) == (STEPS, 0)
    assert found["samples"] == sum(SHORT_BATCH if step % 5 == 4 else GLOBAL_BATCH for step in range(STEPS))
    assert all(math.isfinite(each) for each in found["losses"] + found["norms"])


@pytest.mark.parametrize(("saved", "wanted"), SAVED)
@pytest.mark.parametrize("world", WORLDS)
def test_a_run_resumes_from_its_checkpoint(world: str, saved: str, wanted: str, directory: Path) -> None:
    count = ranks(world)
    half = result(count, _task(saved, "to", saved, count, directory), directory)
    found = result(count, _task(wanted, "from", saved, count, directory), directory)
    assert (len(half["losses"]), len(found["losses"])) == (STEPS // 2, STEPS - STEPS // 2)
    assert found["samples"] == result(count, plan(EXACT[0], count), directory)["samples"], "those before it count"


@compares_losses
@pytest.mark.parametrize("form", EXACT)
@pytest.mark.parametrize("world", WORLDS)
def test_in_fp32_every_plan_has_the_loss_of_one_rank_with_one_batch(world: str, form: str, directory: Path) -> None:
    count = ranks(world)
    equals_the_reference(result(count, plan(form, count), directory), "cuda")


@compares_losses
@pytest.mark.parametrize("form", CLOSE)
@pytest.mark.parametrize("world", WORLDS)
def test_shorter_formats_stay_close(world: str, form: str, directory: Path) -> None:
    count = ranks(world)
    short = plan(form, count)
    stays_close(result(count, short, directory), short, "cuda")


@compares_losses
@pytest.mark.parametrize(("saved", "wanted"), SAVED)
@pytest.mark.parametrize("world", WORLDS)
def test_a_checkpoint_resumes_with_the_same_loss(world: str, saved: str, wanted: str, directory: Path) -> None:
    count = ranks(world)
    result(count, _task(saved, "to", saved, count, directory), directory)
    found = result(count, _task(wanted, "from", saved, count, directory), directory)
    assert found["losses"] == pytest.approx(reference(device="cuda").losses[STEPS // 2 :], rel=1e-5)
