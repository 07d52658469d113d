"""The resume table's entries for a script's own saves with one file per rank, by real launches."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from launches import Launch, Place
from warm_environment import training_python

from memtune.plans.plan import Plan
from memtune.plans.resume import Format, Way, resumption
from memtune.wire.report import Ending
from memtune_runner.install import install

SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "script_shards.py"
SHARDED, COPIED = "fp32-fsdpsgo-none-mb4x1", "fp32-ddp-none-mb4x1"
Train = Callable[[str, int, int], Launch]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pod") / "runner"
    install(directory)
    return directory


@pytest.fixture
def train(runner: Path, tmp_path: Path) -> Train:
    """``train(plan, ranks, attempt)`` starts the script, which resumes from the newest checkpoint."""

    def start(plan: str, ranks: int, attempt: int) -> Launch:
        store = tmp_path / "checkpoints"
        variables = {
            "MEMTUNE_PLAN": plan,
            "MEMTUNE_ATTEMPT": str(attempt),
            "MEMTUNE_GLOBAL_BATCH": "8",
            "MEMTUNE_SEQUENCE_LENGTH": "16",
            "MEMTUNE_GPU_MEMORY_BYTES": str(1 << 30),
            "MEMTUNE_INTEGRATION": "env",
            "MEMTUNE_CHECKPOINT_PATH": str(store),
            "OMP_NUM_THREADS": "1",
        }
        place = Place(runner, tmp_path, training_python())
        return place.run("python", str(SCRIPT), str(store), ranks=ranks, variables=variables)

    return start


def losses(launch: Launch) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"\[rank 0\] step (\d+) loss ([\d.]+)", launch.stdout)}


def entry(saved: str, wanted: str, same_world: bool) -> Way:
    return resumption(Format.SCRIPT, Plan.parse(saved), Plan.parse(wanted), same_world).way


def test_shards_go_on_under_their_own_sharding_and_are_refused_to_others(train: Train) -> None:
    whole = train(SHARDED, 2, 1)
    assert sorted(losses(whole)) == [1, 2, 3, 4, 5, 6], whole.stdout + whole.stderr
    report = whole.report
    assert (report.checkpoint_samples, report.checkpoint_format) == (24, "script")

    refused = [
        (COPIED, 2, "which it saved under another sharding; fp32-fsdpsgo-none-mb4x1 can resume from it"),
        ("fp32-fsdpsgo-none-mb4x2", 1, "which it saved on another number of GPUs; go back to 2 GPUs"),
    ]
    for attempt, (plan, ranks, words) in enumerate(refused, start=2):
        assert entry(SHARDED, plan, ranks == 2) is Way.IMPOSSIBLE
        launch = train(plan, ranks, attempt)
        assert (launch.report.ending, launch.exit_code) == (Ending.BAD_INPUT, 88), launch.stdout + launch.stderr
        assert words in launch.report.message
        assert losses(launch) == {}

    again = "fp32-fsdpsgo-full-mb1x4"
    assert entry(SHARDED, again, True) is Way.DIRECT
    goes_on(train(again, 2, 4), whole)


def goes_on(again: Launch, whole: Launch) -> None:
    assert again.exit_code == 0, again.stdout + again.stderr
    assert again.report.resumed_samples == 24
    rest = {step: loss for step, loss in losses(whole).items() if step > 3}
    assert losses(again) == pytest.approx(rest, rel=1e-5)
