"""The CI workflows call existing targets, with minimal permissions and timeouts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

_ROOT = Path(__file__).resolve().parents[3]
_WORKFLOWS = sorted((_ROOT / ".github" / "workflows").glob("*.yaml"))
_TARGETS = set(re.findall(r"(?m)^([a-z-]+):", (_ROOT / "Makefile").read_text()))
# The pages under .github are not in docs/, but what they name must exist as well.
_TEMPLATES = [*(_ROOT / ".github").rglob("*.md"), *(_ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]


def read(workflow: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(workflow.read_text())
    return content


def jobs(workflow: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs with their own steps; others call a workflow that is read separately."""
    return {name: job for name, job in read(workflow)["jobs"].items() if "uses" not in job}


def called_targets(commands: str) -> set[str]:
    """Return every target of each `make a b NAME=value`."""
    words = [word for call in re.findall(r"\bmake((?: +[\w./$\"{}=-]+)+)", commands) for word in call.split()]
    return {word for word in words if re.fullmatch("[a-z][a-z-]*", word)}


def test_every_target_of_a_call_is_seen() -> None:
    commands = 'make --silent lint verify KIND="$A" docs && make -j2 kind test-kind\nsudo make dist | tee made'
    assert called_targets(commands) == {"lint", "verify", "docs", "kind", "test-kind", "dist"}


def test_there_are_the_two_workflows() -> None:
    assert [workflow.name for workflow in _WORKFLOWS] == ["ci.yaml", "release.yaml"]


@pytest.mark.parametrize("workflow", _WORKFLOWS, ids=lambda path: path.name)
def test_commands_of_workflows_exist(workflow: Path) -> None:
    commands = "\n".join(step.get("run", "") for job in jobs(workflow).values() for step in job["steps"])
    called = called_targets(commands)
    assert called, "it calls no make target"
    assert called - _TARGETS == set()
    scripts = set(re.findall(r"\b(?:tools|images|charts)/[\w./-]+\w", commands))
    assert [name for name in scripts if not (_ROOT / name).exists()] == []


@pytest.mark.parametrize("workflow", _WORKFLOWS, ids=lambda path: path.name)
def test_jobs_have_an_end_and_say_their_rights(workflow: Path) -> None:
    content = read(workflow)
    assert content["permissions"] == {}
    assert "concurrency" in content
    for name, job in jobs(workflow).items():
        assert 0 < job["timeout-minutes"] <= 120, name
    assert [name for name, job in content["jobs"].items() if not isinstance(job["permissions"], dict)] == []


@pytest.mark.parametrize("workflow", _WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_no_registry_is_named(workflow: Path) -> None:
    text = workflow.read_text()
    used = re.findall(r"uses: (.*)", text)
    others = [each for each in used if not (each.startswith("./") and (_ROOT / each.split()[0]).exists())]
    assert [each for each in others if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []
    assert re.findall(r"\b[\w-]+\.(?:io|com|dev|org)\b", text) == []


def test_the_action_is_called_with_inputs_that_it_has_and_uses() -> None:
    text = (_ROOT / ".github/actions/emulated-gpu/action.yaml").read_text()
    inputs = yaml.safe_load(text)["inputs"]
    assert set(re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", text)) == set(inputs)
    required = {name for name, each in inputs.items() if each.get("required")}
    for file, job in ((".github/workflows/ci.yaml", "peaks"), ("examples/peaks/workflow.yaml", "peaks")):
        given = read(_ROOT / file)["jobs"][job]["steps"][-1]["with"]
        assert required <= set(given) <= set(inputs)


def test_scripts_that_make_calls_are_there_and_can_be_run() -> None:
    called = set(re.findall(r"\btools/[\w.]+", (_ROOT / "Makefile").read_text()))
    assert {"tools/kind_cluster.py", "tools/release.py", "tools/try_wheel.sh"} <= called
    assert [name for name in called if not (_ROOT / name).is_file()] == []
    assert [name for name in called if name.endswith(".sh") and not os.access(_ROOT / name, os.X_OK)] == []


def test_nothing_is_published_of_a_commit_that_fails() -> None:
    release = read(_ROOT / ".github" / "workflows" / "release.yaml")["jobs"]
    assert release["tests"]["uses"] == "./.github/workflows/ci.yaml"
    needs = {name: job.get("needs") for name, job in release.items()}
    assert needs == {"tests": None, "package": "tests", "images": "package", "chart": "images", "pypi": "chart"}
    # One image's failure must not cancel the other's push.
    assert release["images"]["strategy"]["fail-fast"] is False


def test_a_commit_is_tested_once() -> None:
    ci = _ROOT / ".github" / "workflows" / "ci.yaml"
    events = read(ci)[True]  # type: ignore[index]  # `on` is a truth value to YAML
    assert events == {"push": {"branches": ["**"]}, "pull_request": None, "workflow_call": None}
    fork = "github.event.pull_request.head.repo.full_name != github.repository"
    conditions = {job.get("if") for job in jobs(ci).values()}
    assert conditions == {f"github.event_name != 'pull_request' || {fork}"}


def test_releases_need_the_settings_that_contributing_names() -> None:
    text = (_ROOT / ".github" / "workflows" / "release.yaml").read_text()
    wanted = set(re.findall(r"\b(?:vars|secrets)\.(\w+)", text)) - {"GITHUB_TOKEN"}
    contributing = (_ROOT / "CONTRIBUTING.md").read_text()
    assert [name for name in sorted(wanted) if f"`{name}`" not in contributing] == []


@pytest.mark.parametrize("template", _TEMPLATES, ids=lambda path: path.name)
def test_github_templates_name_existing_make_targets(template: Path) -> None:
    text = template.read_text()
    assert set(re.findall(r"`make ([a-z-]+)", text)) - _TARGETS == set()
    if template.suffix == ".yml":
        assert yaml.safe_load(text)
