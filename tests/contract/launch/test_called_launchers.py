"""Launchers called as a function run their script in the calling process, which is a rank already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands import launch  # type: ignore[import-untyped]  # it has no types
from launches import free_port
from torch import multiprocessing
from torch.distributed import run as torchrun

from memtune_runner.command import called_launchers
from memtune_runner.command.worker_command import ENTER_DIRECTORY
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.imports import ImportWatch
from memtune_runner.rank.patches import Patches
from memtune_runner.rank.ranks import Rank

RUN_WORKER = ENTER_DIRECTORY / "run_worker.py"
_SCRIPT = """
import json, os, sys
from pathlib import Path
print("runs", __name__)
Path(sys.argv[1]).write_text(json.dumps([os.getpid(), sys.argv[2:], os.environ.get("ACCELERATE_MIXED_PRECISION")]))
"""


@pytest.fixture(autouse=True)
def _in_a_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    main, patches = sys.modules["__main__"], Patches()
    called_launchers.install(ImportWatch(), patches, Rank(1, 1, 2, 2))
    yield
    patches.undo()
    sys.modules["__main__"] = main


def call_torchrun(words: list[str]) -> None:
    torchrun.run(torchrun.get_args_parser().parse_args(["--nproc-per-node", "8", *words]))


def call_accelerate(words: list[str]) -> None:
    options = ["--num_processes", "8", "--mixed_precision", "bf16"]
    launch.launch_command(launch.launch_command_parser().parse_args([*options, *words]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("launcher", "precision"), [(call_torchrun, None), (call_accelerate, "bf16")])
def test_the_script_runs_in_the_process_that_calls(
    launcher: Callable[[list[str]], Any], precision: str | None, tmp_path: Path
) -> None:
    script, told = tmp_path / "train.py", tmp_path / "told.json"
    script.write_text(_SCRIPT)
    launcher([str(script), str(told), "--rate", "0.1"])
    assert json.loads(told.read_text()) == [os.getpid(), ["--rate", "0.1"], precision]


def test_a_program_that_is_no_script_is_refused() -> None:
    with pytest.raises(BadInputError, match="name that program in the job's command"):
        call_torchrun(["--no-python", "./train"])


@pytest.mark.parametrize(("nprocs", "runs"), [(2, [(1, "word")]), (0, [])])
def test_as_many_processes_as_the_node_has_ranks_are_these_ranks(nprocs: int, runs: list[tuple[int, str]]) -> None:
    seen: list[tuple[int, str]] = []
    spawn: Any = vars(multiprocessing)["spawn"]  # torch's types do not export it
    spawn(fn=lambda rank, word: seen.append((rank, word)), args=("word",), nprocs=nprocs)
    assert seen == runs


@pytest.mark.parametrize("fails", [False, True])
def test_code_after_a_spawn_waits_for_every_rank_of_the_node(
    fails: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MEMTUNE_NODE_DIRECTORY", str(tmp_path))
    ended: list[list[str]] = []

    def other_ends(_seconds: float) -> None:
        ended.append(sorted(path.name for path in tmp_path.iterdir()))
        (tmp_path / "spawn-1-rank-0-ended").touch()

    def part(_rank: int) -> None:
        if fails:
            raise SystemExit(0)

    monkeypatch.setattr("time.sleep", other_ends)
    spawn: Any = vars(multiprocessing)["spawn"]
    if fails:  # nothing follows, and nobody waits for this rank
        with pytest.raises(SystemExit):
            spawn(part, nprocs=2)
        assert (tmp_path / "spawn-1-rank-1-ended").exists()
        return
    spawn(part, nprocs=2)
    assert ended == [["spawn-1-rank-1-ended"]]


def test_one_rank_finds_torchruns_variables_in_the_script_that_a_called_torchrun_runs(tmp_path: Path) -> None:
    script, caller = tmp_path / "train.py", tmp_path / "recipe.py"
    script.write_text("import torch.distributed as d; d.init_process_group('gloo'); print('world', d.get_world_size())")
    caller.write_text(
        "import os; from torch.distributed.run import main\n"
        f"print('RANK' in os.environ); main(['--nproc-per-node', '1', {str(script)!r}])"
    )
    variables = {
        "MEMTUNE_PLAN": "fp32-ddp-none-mb2x2",
        "MEMTUNE_RUN_KIND": "train",
        "MEMTUNE_GLOBAL_BATCH": "4",
        "MEMTUNE_SEQUENCE_LENGTH": "8",
        "MEMTUNE_DEVICE": "virtual",
        "MEMTUNE_GPU_MEMORY_BYTES": str(1 << 30),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": os.pathsep.join(sys.path),
        **Rank().variables(),
    }
    words = [sys.executable, str(RUN_WORKER), "script", str(caller)]
    ended = subprocess.run(
        words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout.split("\n")[:2] == ["False", "world 1"], ended.stderr[-3000:]
