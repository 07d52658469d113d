"""The workflows call what is there, with no more rights and time than they need."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

_ROOT = Path(__file__).resolve().parents[2]
_WORKFLOWS = sorted((_ROOT / ".github" / "workflows").glob("*.yaml"))
_TARGETS = set(re.findall(r"(?m)^([a-z-]+):", (_ROOT / "Makefile").read_text()))
# The pages under .github are no part of docs/, and what they name must be there all the same.
_TEMPLATES = [*(_ROOT / ".github").rglob("*.md"), *(_ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")]


def read(workflow: Path) -> dict[str, Any]:
    # `on` is a truth value to YAML; nothing here asks for it.
    content: dict[str, Any] = yaml.safe_load(workflow.read_text())
    return content


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in read(workflow)["jobs"].values() for step in job["steps"]]


def test_there_are_the_two_workflows() -> None:
    assert [workflow.name for workflow in _WORKFLOWS] == ["ci.yaml", "release.yaml"]


@pytest.mark.parametrize("workflow", _WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_runs_is_there(workflow: Path) -> None:
    commands = "\n".join(step["run"] for step in steps(workflow) if "run" in step)
    called = set(re.findall(r"\bmake (?:--silent )?([a-z-]+)", commands))
    assert called, "it calls no make target"
    assert called - _TARGETS == set()
    scripts = set(re.findall(r"\b(?:tools|images|charts)/[\w./-]+\w", commands))
    assert [name for name in scripts if not (_ROOT / name).exists()] == []


@pytest.mark.parametrize("workflow", _WORKFLOWS, ids=lambda path: path.name)
def test_jobs_have_an_end_and_say_their_rights(workflow: Path) -> None:
    content = read(workflow)
    assert content["permissions"] == {}
    assert "concurrency" in content
    for name, job in content["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 120, name
        assert isinstance(job["permissions"], dict), name


@pytest.mark.parametrize("workflow", _WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_no_registry_is_named(workflow: Path) -> None:
    text = workflow.read_text()
    used = re.findall(r"uses: (.*)", text)
    assert [each for each in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []
    assert re.findall(r"\b[\w-]+\.(?:io|com|dev|org)\b", text) == []


def test_scripts_that_make_calls_are_there_and_can_be_run() -> None:
    called = set(re.findall(r"\btools/[\w.]+", (_ROOT / "Makefile").read_text()))
    assert {"tools/kind_cluster.py", "tools/release.py", "tools/try_wheel.sh"} <= called
    assert [name for name in called if not (_ROOT / name).is_file()] == []
    assert [name for name in called if name.endswith(".sh") and not os.access(_ROOT / name, os.X_OK)] == []


def test_releases_need_the_settings_that_contributing_names() -> None:
    text = (_ROOT / ".github" / "workflows" / "release.yaml").read_text()
    wanted = set(re.findall(r"\b(?:vars|secrets)\.(\w+)", text)) - {"GITHUB_TOKEN"}
    contributing = (_ROOT / "CONTRIBUTING.md").read_text()
    assert [name for name in sorted(wanted) if f"`{name}`" not in contributing] == []


@pytest.mark.parametrize("template", _TEMPLATES, ids=lambda path: path.name)
def test_the_templates_name_what_is_there(template: Path) -> None:
    text = template.read_text()
    assert set(re.findall(r"`make ([a-z-]+)", text)) - _TARGETS == set()
    if template.suffix == ".yml":
        assert yaml.safe_load(text)
