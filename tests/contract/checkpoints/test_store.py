"""The checkpoint store on a real disk: a process killed during a save, fences, torn manifests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from memtune.plans.plan import Plan
from memtune.plans.resume import Format
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner import checkpoints
from memtune_runner.checkpoints import Checkpoint, FencedError, NotResumableError, Store, newest, resolve
from memtune_runner.checkpoints.manifest import FILE_NAME, Manifest
from memtune_runner.checkpoints.store import KEPT
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.settings import Settings

PLAN = Plan.parse("bf16-z2-none-mb2x2")

# Saves step 1, then is killed at a point of saving step 2, as in a power failure.
KILLED = """
import os, signal, sys
from pathlib import Path
from memtune_runner.checkpoints import Store, manifest
from memtune_runner.checkpoints.manifest import Manifest
from memtune.plans.plan import Plan
from memtune.plans.resume import Format

root, point = Path(sys.argv[1]), sys.argv[2]
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

def write(directory):
    (directory / "weights").write_bytes(b"1" * 1000)
    if point == "between-files" and step == 2:
        die()
    (directory / "states").write_bytes(b"2" * 1000)
    if point == "after-files" and step == 2:
        die()

for step in (1, 2):
    if step == 2 and point == "before-manifest":
        manifest.sizes = die
    if step == 2 and point == "before-rename":
        Path.replace = die
    if step == 2 and point == "while-pruning":
        manifest.KEPT = 0
        import shutil
        Store._prune = lambda self: ((root / "memtune-step-00000001-attempt-0" / "weights").unlink(), die())
    Store(root, 0).save(write, Manifest(step, 8 * step, Plan.parse("bf16-z2-none-mb2x2"), 2, Format.DEEPSPEED))
"""


@pytest.mark.parametrize(
    ("point", "step"),
    [("between-files", 1), ("after-files", 1), ("before-manifest", 1), ("before-rename", 1), ("while-pruning", 2)],
)
def test_a_save_that_is_killed_leaves_the_previous_checkpoint_the_newest(point: str, step: int, tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, str(tmp_path), point]
    done = subprocess.run(command, env=variables, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    found = newest(tmp_path)
    assert found is not None
    assert (found.manifest.step, found.manifest.samples) == (step, 8 * step)
    saved(tmp_path, 2, attempt=1)  # and the remains are in nobody's way
    assert _newest_step(tmp_path) == 2


def saved(root: Path, step: int, attempt: int = 0, plan: Plan = PLAN) -> Path:
    def write(directory: Path) -> None:
        (directory / "shards").mkdir()
        (directory / "shards" / "weights").write_bytes(b"1" * step)

    return Store(root, attempt).save(write, Manifest(step, 8 * step, plan, 2, Format.DEEPSPEED))


def _newest_step(root: Path) -> int | None:
    found = newest(root)
    return found.manifest.step if found else None


def test_there_is_nothing_in_a_directory_that_is_empty_or_missing(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "missing") is None


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    foreign = tmp_path / "pretrained"
    foreign.mkdir()
    for step in range(1, 6):
        saved(tmp_path, step)
    assert sorted(path.name for path in tmp_path.glob("memtune-step-*")) == [
        f"memtune-step-{step:08}-attempt-0" for step in range(6 - KEPT, 6)
    ]
    assert foreign.exists()
    last = checkpoints.last_completed()
    assert last is not None
    assert last.manifest.step == 5


def test_an_older_attempt_neither_saves_nor_deletes(tmp_path: Path) -> None:
    Store(tmp_path, 1).write_fence()
    saved(tmp_path, 1, attempt=1)
    Store(tmp_path, 2).write_fence()
    with pytest.raises(FencedError, match="attempt 2 has begun"):
        saved(tmp_path, 2, attempt=1)
    with pytest.raises(FencedError, match="attempt 1 must not save"):
        Store(tmp_path, 1).write_fence()
    assert _newest_step(tmp_path) == 1


def _one_file(directory: Path) -> None:
    (directory / "weights").write_bytes(b"1")


def test_a_job_that_was_made_anew_goes_on_and_the_one_before_is_left_over(tmp_path: Path) -> None:
    for attempt in (1, 2, 3):
        Store(tmp_path, attempt, job_uid="old").write_fence()
    old, new = (Store(tmp_path, attempt, job_uid=uid) for attempt, uid in ((3, "old"), (1, "new")))
    old.save(_one_file, Manifest(1, 8, PLAN, 2, Format.DEEPSPEED))
    new.write_fence()
    with pytest.raises(FencedError, match="another job has begun"):
        old.save(_one_file, Manifest(2, 16, PLAN, 2, Format.DEEPSPEED))
    new.save(_one_file, Manifest(3, 24, PLAN, 2, Format.DEEPSPEED))
    assert _newest_step(tmp_path) == 3
    Store(tmp_path, 2, job_uid="new").write_fence()
    with pytest.raises(FencedError, match="attempt 2 has begun"):
        new.check_fence()


def test_a_fence_that_is_raised_during_a_save_keeps_it_from_completing(tmp_path: Path) -> None:
    saved(tmp_path, 1)

    def write(directory: Path) -> None:
        (directory / "weights").write_bytes(b"1")
        Store(tmp_path, 1).write_fence()

    with pytest.raises(FencedError):
        Store(tmp_path, 0).save(write, Manifest(2, 16, PLAN, 2, Format.DEEPSPEED))
    assert _newest_step(tmp_path) == 1


def _truncate(directory: Path) -> None:
    (directory / "shards" / "weights").write_bytes(b"1")


def _delete_file(directory: Path) -> None:
    (directory / "shards" / "weights").unlink()


def _tear(directory: Path) -> None:
    whole = (directory / FILE_NAME).read_text()
    (directory / FILE_NAME).write_text(whole[: len(whole) // 2])


def _garbage(directory: Path) -> None:
    (directory / FILE_NAME).write_bytes(b"\xff\x00[")


def _foreign(directory: Path) -> None:
    (directory / FILE_NAME).write_text('{"version": 1, "files": {"../../weights": 1}}')


def _other_version(directory: Path) -> None:
    data = json.loads((directory / FILE_NAME).read_text())
    (directory / FILE_NAME).write_text(json.dumps(data | {"version": 99}))


def _not_an_object(directory: Path) -> None:
    (directory / FILE_NAME).write_text("[" * 5000)


@pytest.mark.parametrize(
    "harm",
    [_truncate, _delete_file, _tear, _garbage, _foreign, _other_version, _not_an_object],
    ids=lambda f: f.__name__,
)
def test_an_incomplete_checkpoint_is_skipped_with_a_message(
    harm: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 1)
    newer = saved(tmp_path, 2)
    assert callable(harm)
    harm(newer)
    assert _newest_step(tmp_path) == 1
    assert "memtune: a checkpoint is passed over: " in capsys.readouterr().err


def test_checkpoints_of_a_trainer_are_found_one_level_below(tmp_path: Path) -> None:
    directory = tmp_path / "output" / "checkpoint-5"
    directory.mkdir(parents=True)
    (directory / "model.safetensors").write_bytes(b"1")
    Store(tmp_path, 0).complete(directory, Manifest(5, 40, PLAN, 2, Format.HF_TRAINER))
    found = newest(tmp_path)
    assert found is not None
    assert found.directory == directory


def settings(root: Path | None, plan: str = str(PLAN), attempt: int = 1, kind: RunKind = RunKind.TRAIN) -> Settings:
    return Settings(
        plan=Plan.parse(plan),
        kind=kind,
        integration="sdk",
        global_batch=8,
        sequence_length=8,
        gpus_per_node=2,
        attempt=attempt if kind is RunKind.TRAIN else None,
        device=Device.VIRTUAL,
        gpu_memory_bytes=1 << 30,
        checkpoint_path=root,
    )


def test_a_relaunch_goes_on_from_the_newest(tmp_path: Path) -> None:
    assert resolve(settings(tmp_path)) is None
    assert resolve(settings(None)) is None
    saved(tmp_path, 1, attempt=1)
    newer = saved(tmp_path, 2, attempt=1)
    resumed = resolve(settings(tmp_path, "bf16-z1-full-mb1x4", attempt=2))
    assert resumed is not None
    assert (resumed.directory, resumed.samples, resumed.format) == (newer, 16, Format.DEEPSPEED)
    with pytest.raises(FencedError):  # the old attempt is over
        saved(tmp_path, 3, attempt=1)


def test_a_training_that_began_again_finds_nothing_of_before_and_loses_nothing(tmp_path: Path) -> None:
    """Another optimizer could not resume from it, and it has more samples than what is saved now."""
    before = saved(tmp_path, 9, attempt=1)
    torn = tmp_path / "output" / "checkpoint-7"
    torn.mkdir(parents=True)
    litgpts = tmp_path / "out" / "step-000004"
    litgpts.mkdir(parents=True)
    (tmp_path / "pretrained").mkdir()
    again = replace(settings(tmp_path, "bf16-z2-none-mb2x2-adamw8bit", attempt=2), restarted_at=2, job_uid="job")
    assert resolve(again) is None
    assert newest(tmp_path) is None
    aside = tmp_path / ".memtune-before-attempt-2"
    assert all((aside / path.relative_to(tmp_path)).is_dir() for path in (before, torn, litgpts))
    assert (tmp_path / "pretrained").is_dir()
    own = Store(tmp_path, 2, job_uid="job").save(_one_file, Manifest(1, 8, again.plan, 2, Format.DEEPSPEED))
    for relaunched in (replace(again, attempt=3), replace(again, attempt=1, restarted_at=0, job_uid="made anew")):
        resumed = resolve(relaunched)
        assert resumed is not None
        assert resumed.directory == own


def test_checkpoints_of_another_job_count_as_older(tmp_path: Path) -> None:
    Store(tmp_path, 5, job_uid="one").save(_one_file, Manifest(1, 8, PLAN, 2, Format.DEEPSPEED))
    assert resolve(replace(settings(tmp_path, attempt=3), restarted_at=2, job_uid="another")) is None


def test_a_resume_from_another_jobs_checkpoint_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = Store(tmp_path, 1, job_uid="one").save(_one_file, Manifest(1, 8, PLAN, 2, Format.DEEPSPEED))
    assert resolve(replace(settings(tmp_path, attempt=2), job_uid="one")) is not None
    assert capsys.readouterr().err == ""
    assert resolve(replace(settings(tmp_path), job_uid="another")) is not None
    assert f"resumes from {own}, 8 samples that another job saved" in capsys.readouterr().err


@pytest.mark.parametrize("kind", RunKind)
def test_a_path_that_cannot_be_written_is_bad_input_of_the_first_probe_already(kind: RunKind, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInputError, match=r"spec\.checkpoint\.path: .*/file/saves cannot be written"):
        resolve(settings(tmp_path / "file" / "saves", kind=kind))


def test_a_path_that_a_probe_cannot_write_is_named_as_the_job_names_it(tmp_path: Path) -> None:
    (tmp_path / "saves").touch()
    own = replace(settings(tmp_path / "saves" / ".memtune-job-probe-1", kind=RunKind.PROBE), run="job-probe-1")
    with pytest.raises(BadInputError, match=r"spec\.checkpoint\.path: .*/saves cannot be written"):
        resolve(own)


def test_a_training_deletes_the_saves_of_killed_probes(tmp_path: Path) -> None:
    kept = [".memtune-before-attempt-2", ".memtune-other-probe-1", ".memtune-job-probe-x", "job-probe-1"]
    for name in (".memtune-job-probe-1", ".memtune-job-emulate-12", *kept):
        (tmp_path / name / "step-1").mkdir(parents=True)
    resolve(replace(settings(tmp_path), run="job-train-1"))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == sorted(kept)


def test_a_probe_starts_from_fresh_weights_and_fences_nobody(tmp_path: Path) -> None:
    saved(tmp_path, 1, attempt=1)
    assert resolve(settings(tmp_path, kind=RunKind.PROBE)) is None
    saved(tmp_path, 2, attempt=1)


def test_a_conversion_is_asked_for_once(tmp_path: Path) -> None:
    source = saved(tmp_path, 1)
    asked: list[Path] = []

    def convert(found: Checkpoint, plan: Plan, world: int) -> Path:
        asked.append(found.directory)
        target = source.with_name(f"{source.name}-universal")
        target.mkdir()
        (target / "weights").write_bytes(b"1")
        manifest = Manifest(1, 8, found.manifest.plan, world, Format.UNIVERSAL, files={"weights": 1})
        checkpoints.manifest.write(target, manifest)
        assert plan.sharding.value == "z3"
        return target

    for _ in range(2):
        resumed = resolve(settings(tmp_path, "bf16-z3-none-mb1x4"), convert)
        assert resumed is not None
        assert (resumed.format, resumed.samples) == (Format.UNIVERSAL, 8)
    assert asked == [source]


def test_a_checkpoint_that_cannot_be_resumed_names_the_plan_that_can(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    with pytest.raises(NotResumableError, match=r"only DeepSpeed reads .*; bf16-z2-full-mb1x4 can resume from it"):
        resolve(settings(tmp_path, "bf16-fsdp-full-mb1x4"))


def test_a_checkpoint_that_is_named_must_be_complete(tmp_path: Path) -> None:
    named = settings(tmp_path)
    object.__setattr__(named, "resume_from", tmp_path / "missing")
    with pytest.raises(NotResumableError, match="name a complete checkpoint"):
        resolve(named)
    object.__setattr__(named, "resume_from", saved(tmp_path, 1, attempt=1))
    saved(tmp_path, 2, attempt=1)
    resumed = resolve(named)
    assert resumed is not None
    assert resumed.step == 1
