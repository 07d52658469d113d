"""Real launches of a script that calls ``checkpoint_saved``, correctly or with a common mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from launches import Launch, Place
from torch import distributed
from torch._C._distributed_c10d import HashStore
from warm_environment import training_python

from memtune.wire.report import Ending
from memtune_runner.checkpoints import newest, save_barrier
from memtune_runner.install import install
from memtune_runner.rank import shared_store
from memtune_runner.rank.bad_input import BadInputError

SCRIPT = Path(__file__).parents[2] / "support" / "programs" / "saving_loop.py"
Train = Callable[..., Launch]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pod") / "runner"
    install(directory)
    return directory


@pytest.fixture
def train(runner: Path, tmp_path: Path) -> Train:
    """``train(manner, attempt)`` starts the loop on two ranks."""

    def start(manner: str, attempt: int = 1) -> Launch:
        store = tmp_path / "checkpoints"
        variables = {
            "MEMTUNE_PLAN": "fp32-ddp-none-mb4x1",
            "MEMTUNE_RUN": f"job-train-{attempt}",
            "MEMTUNE_ATTEMPT": str(attempt),
            "MEMTUNE_GLOBAL_BATCH": "8",
            "MEMTUNE_SEQUENCE_LENGTH": "16",
            "MEMTUNE_GPU_MEMORY_BYTES": str(1 << 30),
            "MEMTUNE_INTEGRATION": "env",
            "MEMTUNE_CHECKPOINT_PATH": str(store),
        }
        place = Place(runner, tmp_path, training_python())
        return place.run("torchrun", str(SCRIPT), str(store), manner, ranks=2, variables=variables)

    return start


@pytest.mark.parametrize("manner", ["rank-0", "rank-0-averages", "rank-0-at-end"])
def test_a_checkpoint_reported_by_rank_0_alone_ends_the_run_with_a_remedy(
    manner: str, train: Train, tmp_path: Path
) -> None:
    launch = train(manner)
    assert (launch.report.ending, launch.exit_code) == (Ending.BAD_INPUT, 88), launch.stdout + launch.stderr
    assert "was called on rank 0 only, and rank 1 went on without it" in launch.report.message
    assert "call it on every rank, outside of any condition on the rank" in launch.report.message
    assert "told of" not in launch.stdout
    assert newest(tmp_path / "checkpoints") is None


def test_a_rank_that_writes_for_long_is_waited_for(train: Train) -> None:
    launch = train("slow")
    assert launch.exit_code == 0, launch.stdout + launch.stderr
    assert launch.report.checkpoint_samples == 32
    assert launch.stdout.count("told of") == 4


def test_waiting_for_a_rank_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    monkeypatch.setattr(shared_store, "of_all_ranks", lambda: store)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 3)
    save_barrier.reset()
    with pytest.raises(BadInputError, match=r"was called on rank 1 only, and ranks 0, 2 did not come within"):
        save_barrier.wait_for_all_ranks("checkpoint_saved(checkpoints/1)", "call it on every rank", 0.1)


def test_a_resumed_script_that_counts_from_0_again_is_ended_at_its_first_checkpoint(
    train: Train,
) -> None:
    first = train("right")
    assert (first.exit_code, first.report.checkpoint_samples) == (0, 32), first.stdout + first.stderr
    launch = train("forgets", 2)
    assert (launch.report.ending, launch.exit_code) == (Ending.BAD_INPUT, 88), launch.stdout + launch.stderr
    assert "checkpoint_saved(samples=16): the run was resumed after 32 samples" in launch.report.message
    assert "$MEMTUNE_RESUME_SAMPLES" in launch.report.message
    assert launch.report.checkpoint_samples == 32, "what was saved before is still the newest"
    again = train("right", 3)
    assert (again.exit_code, again.report.checkpoint_samples) == (0, 64), again.stdout + again.stderr


@pytest.mark.parametrize(
    ("manner", "said"),
    [
        ("half", "checkpoint_saved(samples=8) came after about 16 samples were trained: pass those of all ranks"),
        ("steps", "checkpoint_saved(samples=2) came after about 16 samples were trained: pass those of all ranks"),
        ("elsewhere", "the script saves outside of checkpoint.path, where no relaunch finds it: let it save below"),
    ],
)
def test_warnings_are_in_the_report_and_once_in_the_log(manner: str, said: str, train: Train) -> None:
    launch = train(manner)
    assert (launch.report.ending, launch.exit_code) == (Ending.SUCCEEDED, 0), launch.stdout + launch.stderr
    assert launch.report.warnings.startswith(said)
    assert launch.stderr.count(said) == 1
