"""The samples in a call of checkpoint_saved are compared with those trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memtune.plans.plan import Plan
from memtune.wire.run import RunKind
from memtune_runner.checkpoints import save_barrier, saving
from memtune_runner.checkpoints.store import Store
from memtune_runner.rank import progress, script_warnings
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.progress import Progress
from memtune_runner.rank.settings import Settings

PLAN = Plan.parse("fp32-ddp-none-mb4x1")
Save = Callable[..., str]


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Save]:
    """``save(samples, trained, resumed)`` declares a checkpoint and returns the warnings."""
    monkeypatch.setenv("MEMTUNE_PLAN", str(PLAN))
    monkeypatch.setattr(save_barrier, "wait_for_all_ranks", lambda *_: None)
    monkeypatch.setattr(saving, "_complete", lambda *_: None)
    monkeypatch.setattr(Store, "last_completed", None)

    def called(samples: int, trained: Progress, resumed: int = 0) -> str:
        settings = Settings(PLAN, RunKind.TRAIN, "env", 4, 16, checkpoint_path=tmp_path, resume_samples=resumed)
        monkeypatch.setattr(saving, "read_settings", lambda _: settings)
        progress.begin(lambda: trained)
        saving.checkpoint_saved(tmp_path / str(samples), samples=samples)
        return script_warnings.collected()

    script_warnings.reset()
    yield called
    progress.reset()
    script_warnings.reset()


def test_a_checkpoint_with_the_trained_samples_is_accepted(save: Save) -> None:
    assert save(64, Progress(16, 16, 64)) == ""
    assert save(128, Progress(16, 16, 64), resumed=64) == ""


def test_samples_that_make_several_steps_each_end_no_run(save: Save) -> None:
    told = save(16, Progress(16, 16, 64))
    assert told.startswith("checkpoint_saved(samples=16) came after about 64 samples were trained: pass those of all")
    assert "micro-batches, not the 16 steps" in told
    assert "unless the loop trains several times on each" in told


def test_samples_that_make_several_steps_each_end_no_resumed_run(save: Save) -> None:
    assert "came after about 96 samples were trained" in save(48, Progress(16, 16, 64), resumed=32)


@pytest.mark.parametrize("samples", [16, 64])
def test_a_resumed_run_that_counts_from_0_is_ended(samples: int, save: Save) -> None:
    with pytest.raises(BadInputError, match="counts them from 0 again"):
        save(samples, Progress(16, 16, 64), resumed=64)
