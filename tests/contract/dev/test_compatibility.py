"""docs/compatibility.md: its versions match locks, workflow and code, and its messages are real ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fast_yaml
import pytest
import torch

from memtune.plans.plan import Plan
from memtune_runner import old_python
from memtune_runner.engine import optimizers, precision
from memtune_runner.rank import preflight
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.plan_refusals import PlanError
from tools.kind_cluster import RELEASES

_ROOT = Path(__file__).resolve().parents[3]
_PAGE = (_ROOT / "docs" / "compatibility.md").read_text()
_PROJECT = (_ROOT / "pyproject.toml").read_text()
_PLAN = Plan.parse("bf16-z2-none-mb1x1")


def rows(header: str) -> dict[str, list[str]]:
    """Return a table of the page by its first column."""
    table = _PAGE.partition(f"| {header} |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table]
    return {first: rest for first, *rest in cells}


def locked(name: str) -> str:
    for lock in ("dev", "torch", "scripts"):
        if found := re.search(rf"(?m)^{name}==([^ ;\n]+)", (_ROOT / "tools" / f"{lock}.lock").read_text()):
            return found[1]
    raise AssertionError(f"{name} is not locked")


def test_the_versions_that_were_run_are_the_locked_ones() -> None:
    packages = {name: row[0] for name, row in rows("package").items() if not name.startswith("Python")}
    assert packages == {name: locked(name) for name in packages}
    libraries = {"torch", "deepspeed", "transformers", "accelerate", "peft", "lightning"}
    programs = {"trl", "litgpt", "sentence-transformers"}
    assert libraries | programs <= packages.keys()


def test_the_pythons_are_those_of_the_workflow() -> None:
    workflow = fast_yaml.load((_ROOT / ".github" / "workflows" / "ci.yaml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.13"]
    run = [row[0] for name, row in rows("package").items() if name.startswith("Python of ")]
    assert run == 2 * ["3.11; 3.13 in the workflow, not run yet"]


def test_the_two_builds_of_torch_are_of_one_version() -> None:
    cuda = (_ROOT / "tools" / "torch-cuda.lock").read_text()
    assert f"torch==={locked('torch')}" in cuda.split()


def test_the_versions_that_are_accepted_are_those_of_the_packages_and_the_code() -> None:
    accepted = {name: row[1] for name, row in rows("package").items()}
    lower = dict(re.findall(r'"([\w-]+)>=([\d.]+)"', _PROJECT))
    for name in ("torch", "deepspeed", "kopf", "kubernetes"):
        assert accepted[name].startswith(f"{lower[name]} or newer")
    assert accepted["torch"] == "{}.{} or newer".format(*preflight.OLDEST_TORCH)
    assert 'requires-python = ">=3.10,<3.14"' in _PROJECT
    assert accepted["Python of the command and the runner"] == "3.10 or newer, before 3.14 to install them"


def test_kubernetes_versions_are_those_of_kind_and_of_the_workflow() -> None:
    workflow = fast_yaml.load((_ROOT / ".github" / "workflows" / "ci.yaml").read_text())
    matrix = workflow["jobs"]["kubernetes"]["strategy"]["matrix"]["include"]
    assert {row["kubernetes"]: row["kind"] for row in matrix} == {name: each.kind for name, each in RELEASES.items()}
    assert all(f":v{name}." in each.node_image for name, each in RELEASES.items())
    table = rows("Kubernetes")
    assert ", ".join(RELEASES) in table
    assert f"{min(RELEASES)} to {max(RELEASES)}" in table
    oldest = fast_yaml.load((_ROOT / "charts" / "memtune" / "Chart.yaml").read_text())["kubeVersion"]
    assert (table["1.20"][0], oldest) == ("run", ">=1.20.0-0")


def test_the_messages_are_those_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [_old_python()]
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    for found, version in ((None, ""), (object(), "2.5.1")):
        monkeypatch.setattr(preflight, "find_spec", lambda _, found=found: found)
        monkeypatch.setattr(preflight, "version", lambda _, version=version: version)
        with pytest.raises(BadInputError) as refused:
            preflight.check_torch()
        shown.append(str(refused.value))
    shown += _plan_errors(monkeypatch)
    assert [row[0] for row in rows("what").values()] == [each.replace(str(_PLAN), "PLAN") for each in shown]


def _old_python() -> str:
    code = (
        "import sys; sys.version_info = (3, 8, 1); sys.executable = '/usr/bin/python3'; "
        "from memtune_runner.old_python import refuse_old_python; refuse_old_python()"
    )
    runner = str(Path(old_python.__file__).resolve().parents[1])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": runner}, capture_output=True, text=True, check=False)
    assert done.returncode == 88
    return done.stderr.strip().removeprefix("memtune: ")


def _plan_errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    errors = []
    monkeypatch.setattr(torch, "__version__", "2.8.0")
    monkeypatch.setattr(optimizers, "torch", SimpleNamespace(optim=SimpleNamespace(), __version__="2.8.0"))
    with pytest.raises(PlanError) as refused:
        optimizers._muon(_PLAN, torch.nn.Linear(1, 1), 0.1)
    errors.append(str(refused.value))
    for capability in ((8, 0), (9, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        monkeypatch.setitem(sys.modules, "torchao", None)
        monkeypatch.setitem(sys.modules, "torchao.float8", None)
        with pytest.raises(PlanError) as refused:
            precision._use_fp8(torch.nn.Linear(1, 1), _PLAN, torch.device("cuda"))
        errors.append(str(refused.value))
    return errors
