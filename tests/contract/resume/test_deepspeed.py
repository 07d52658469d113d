"""The resume table's entries for DeepSpeed, against DeepSpeed: the loss continues undisturbed."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_suite import forked

from memtune.plans.plan import Plan
from memtune.plans.resume import Format, Way, resumption
from memtune_runner.checkpoints import universal

WORKER = Path(__file__).parents[2] / "support" / "programs" / "deepspeed_resume.py"
LIMIT_SECONDS = 300
FIRST, SECOND = "fp32-z2-none-mb2x2", "fp32-z3-none-mb2x2"
# Saved and resumed by two ranks.
SAME_WORLD = [
    (FIRST, "fp32-z2-none-mb1x4"),
    (FIRST, "fp32-z1-none-mb4x1"),
    (FIRST, "fp32-z2-none-mb2x2-oopt"),
    (FIRST, "fp32-z3-none-mb1x4"),
    (FIRST, "fp32-z3-none-mb2x2-oparam"),
    (SECOND, "fp32-z3-full-mb1x4"),
    (SECOND, "fp32-z3-none-mb1x4-oparam"),
    ("fp32-z0-none-mb2x2", "fp32-z0-none-mb1x4"),
    ("bf16-z1-none-mb2x2-g32", "bf16-z1-none-mb1x4-g32"),
    ("bf16-z1-none-mb2x2-g32", "bf16-z2-none-mb2x2"),
    ("bf16-z1-none-mb2x2-g32", "bf16-z3-none-mb2x2"),
]
# Also by two ranks: impossible for DeepSpeed in any form.
IMPOSSIBLE = [
    (SECOND, FIRST),
    ("fp32-z0-none-mb2x2", "fp32-z1-none-mb2x2"),
    (FIRST, "fp32-z0-none-mb2x2"),
    (FIRST, "bf16-z2-none-mb2x2"),
]
# Saved by two ranks, resumed by one.
OTHER_WORLD = [
    (FIRST, "fp32-z2-none-mb4x2"),
    (FIRST, "fp32-z3-none-mb2x4"),
    (SECOND, "fp32-z3-none-mb1x8"),
    ("fp32-z0-none-mb2x2", "fp32-z0-none-mb1x8"),
]
Told = dict[tuple[str, str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    root = tmp_path_factory.mktemp("checkpoints")
    return {**_run(root, SAME_WORLD + IMPOSSIBLE, 2), **_run(root, OTHER_WORLD, 1)}


def _run(root: Path, cases: list[tuple[str, str]], world: int) -> Told:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
    words = [str(WORKER), str(root), json.dumps(cases)]
    ranks = [forked(words, {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(world)]
    try:
        output = ranks[0].communicate(timeout=LIMIT_SECONDS)[0]
        for rank in ranks:
            rank.wait(LIMIT_SECONDS)
    finally:
        for rank in ranks:
            rank.kill()
    lines = [json.loads(line.removeprefix("told: ")) for line in output.splitlines() if line.startswith("told: ")]
    assert len(lines) == len(cases), output
    return {(line["saved"], line["wanted"], world): line for line in lines}


CASES = [(*case, 2) for case in SAME_WORLD] + [(*case, 1) for case in OTHER_WORLD]


@pytest.mark.parametrize(("saved", "wanted", "world"), CASES)
def test_a_relaunch_continues_with_the_same_loss(saved: str, wanted: str, world: int, told: Told) -> None:
    line = told[saved, wanted, world]
    assert "error" not in line, line["error"]
    entry = resumption(Format.DEEPSPEED, Plan.parse(saved), Plan.parse(wanted), same_world=world == 2)
    assert line["converted"] == (entry.way is Way.CONVERT)
    # bf16 weights round differently when they are sharded differently.
    expected, tolerance = (line["undisturbed"], 1e-5) if saved.startswith("fp32") else (line["undisturbed"], 1e-3)
    assert line["losses"] == pytest.approx(expected, rel=tolerance)
    assert line["options"] == [[0.01, 0.1], [0.01, 0.0]], "each parameter group keeps its own weight decay"


@pytest.mark.parametrize(("saved", "wanted"), IMPOSSIBLE)
def test_plans_that_cannot_resume_a_checkpoint_are_refused(saved: str, wanted: str, told: Told) -> None:
    assert resumption(Format.DEEPSPEED, Plan.parse(saved), Plan.parse(wanted), same_world=True).way is Way.IMPOSSIBLE
    assert "error" in told[saved, wanted, 2], "the table can have more"


@pytest.mark.parametrize(("kernel", "device"), [({"fused": True}, "meta"), ({"foreach": True}, "cpu")])
def test_a_step_counter_lies_where_the_kernel_reads_it(kernel: dict[str, bool], device: str) -> None:
    weights = [torch.nn.Parameter(torch.empty(2, device="meta")) for _ in range(2)]
    optimizer = torch.optim.AdamW(weights, foreach=True)
    optimizer.param_groups[0].update({"fused": None, "foreach": None, **kernel})
    read = torch.tensor(3.0)  # from a file, as DeepSpeed leaves it: one for all
    for each in weights:
        optimizer.state[each]["step"] = read
    universal._keep_groups_apart(optimizer, [dict(group) for group in optimizer.param_groups])
    first, second = (optimizer.state[each]["step"] for each in weights)
    assert first is not second
    assert {first.device.type, second.device.type} == {device}
