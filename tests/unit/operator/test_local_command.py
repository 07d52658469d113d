"""The command of a run that is a local process instead of a pod."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from small_jobs import make_job

from memtune.api.container import substitute
from memtune.plans.plan import Plan
from memtune.wire import environment
from memtune.wire.run import Run, RunKind
from memtune_operator.local.backend import _pod
from memtune_operator.local.checkpoints import checkpoint_path, moved
from memtune_operator.local.command import command_of
from memtune_operator.local.runs import expanded

OWN = str(Path(sys.executable).parent)
CONTAINER = {"name": "trainer", "image": "own:1", "command": ["torchrun", "train.py", "--out=/checkpoints/run"]}
RUN = Run(RunKind.TRAIN, 1, Plan.parse("bf16-z1-none-mb4x1"))


def command(state: Path, **variables: str) -> tuple[list[str], dict[str, str]]:
    env = [{"name": name, "value": value} for name, value in variables.items()]
    job = make_job(
        template={"spec": {"containers": [{**CONTAINER, "env": env}]}},
        checkpoint={"path": "/checkpoints", "volume": {"persistentVolumeClaim": {"claimName": "own"}}},
    )
    words, told, _ = command_of(job, _pod(job, RUN), state)
    return words, told


def test_saves_into_the_volume_go_to_the_state_directory(tmp_path: Path) -> None:
    words, variables = command(tmp_path)
    assert words[-3:] == ["torchrun", "train.py", f"--out={tmp_path}/checkpoints/run"]
    assert variables[environment.CHECKPOINT_PATH] == f"{tmp_path}/checkpoints"


def test_a_probe_saves_into_a_directory_of_its_own(tmp_path: Path) -> None:
    container = {**CONTAINER, "command": ["torchrun", "train.py", "--out=$(MEMTUNE_CHECKPOINT_PATH)/run"]}
    job = make_job(template={"spec": {"containers": [container]}}, checkpoint={"path": "/checkpoints"})
    run = Run(RunKind.PROBE, 2, RUN.plan)
    words, whole = command_of(job, _pod(job, run), tmp_path).expanded()
    own = f"/checkpoints/.memtune-{whole[environment.RUN]}"
    assert (whole[environment.CHECKPOINT_PATH], words[-1]) == (own, f"--out={own}/run")


def test_variables_are_those_that_the_container_would_have(tmp_path: Path) -> None:
    """The same template's own paths and references to variables work here as in a pod."""
    name = "$(MEMTUNE_CHECKPOINT_PATH)/$(MEMTUNE_MICRO_BATCH)-$(LATER)"
    own = {"OUT": "/checkpoints/run", "NAME": name, "LATER": "$$"}
    found = expanded(command(tmp_path, **own, PYTHONPATH="/mine")[1])
    saves = f"{tmp_path}/checkpoints"
    assert (found["OUT"], found["NAME"], found["LATER"]) == (f"{saves}/run", f"{saves}/4-$(LATER)", "$")
    assert found["PYTHONPATH"] == os.pathsep.join([f"{tmp_path}/runner", "/mine"])


CLAIM = {"persistentVolumeClaim": {"claimName": "own"}}


@pytest.mark.parametrize(
    ("checkpoint", "mounted", "expected"),
    [
        (None, "/data", ""),
        ({}, "/data", "state/checkpoints"),
        ({"volume": CLAIM}, "/data", "state/checkpoints"),
        ({"path": "/home/a/c", "volume": CLAIM}, "/data", "state/checkpoints"),
        ({"path": "/data/c"}, "/data", "state/checkpoints"),
        ({"path": "/data/c"}, "/database", "/data/c"),
        ({"path": "/checkpoints"}, "/data", "/checkpoints"),
    ],
)
def test_checkpoints_are_in_the_state_but_for_those_whose_directory_the_user_has_chosen(
    checkpoint: dict[str, object] | None, mounted: str, expected: str
) -> None:
    container = {**CONTAINER, "volumeMounts": [{"name": "own", "mountPath": mounted}]}
    job = make_job(template={"spec": {"containers": [container]}}, checkpoint=checkpoint)
    assert checkpoint_path(job, Path("state")) == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("/checkpoints", "/home/a/c"),
        ("/checkpoints/run", "/home/a/c/run"),
        ("--output_dir=/checkpoints/run", "--output_dir=/home/a/c/run"),
        ("/checkpoints-old/run", "/checkpoints-old/run"),
        ("/data/checkpoints/run", "/data/checkpoints/run"),
        ("train.py", "train.py"),
    ],
)
def test_a_word_has_the_path_by_itself_or_as_its_beginning(word: str, expected: str) -> None:
    assert moved(word, "/checkpoints", "/home/a/c") == expected


@pytest.mark.parametrize(
    ("activated", "path"),
    [
        ({}, f"{OWN}{os.pathsep}/bin"),
        ({"CONDA_DEFAULT_ENV": "base"}, f"{OWN}{os.pathsep}/bin"),
        ({"CONDA_DEFAULT_ENV": "mine"}, None),
        ({"VIRTUAL_ENV": "/home/a/venv"}, None),
    ],
)
def test_programs_are_those_beside_memtune_unless_an_environment_is_activated(
    activated: dict[str, str], path: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONDA_DEFAULT_ENV", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PATH": "/bin", **activated}.items():
        monkeypatch.setenv(name, value)
    assert command(tmp_path)[1].get("PATH") == path


def test_nothing_that_a_run_here_does_not_have_reaches_its_command_as_a_reference(tmp_path: Path) -> None:
    """Of the names that a template may refer to, the launcher fills in those of checkpoints."""
    variables = expanded(command(tmp_path)[1])
    for name in environment.REFERABLE.difference(environment.FOUND_BY_LAUNCHER):
        assert "$" not in substitute(f"$({name})", variables), name
    assert substitute("$(MEMTUNE_METRICS_PORT)", variables) == ""
