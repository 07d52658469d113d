"""The images' lock files match the development environment, and a build gets them: what is tested is shipped."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def requirements(path: str) -> dict[str, set[str]]:
    """Return each locked version (with its marker) and its hashes."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in (ROOT / path).read_text().splitlines():
        words = line.removesuffix("\\").strip()
        if line.startswith(" "):
            found[name].add(words)
        else:
            name = words.partition(" ")[0]
            found.setdefault(name, set())
    return found


@pytest.mark.parametrize(
    "lock", ["images/operator", "images/operator-gp", "images/runner", "tools/demo", "tools/demo-local"]
)
def test_images_and_the_demo_have_the_tested_versions(lock: str) -> None:
    tested = requirements("tools/dev.lock")
    shipped = requirements(f"{lock}.lock")
    assert {name: tested.get(name) for name in shipped} == shipped


def test_the_demo_without_a_cluster_installs_the_imports_of_a_local_run() -> None:
    held = {name.partition("==")[0] for name in requirements("tools/demo-local.lock")}
    assert {"optuna", "pydantic", "pyyaml", "shtab", "sympy"} <= held
    assert {"torch", "deepspeed", "helm-python-sdk"}.isdisjoint(held)


def test_each_image_has_only_its_packages() -> None:
    operator, runner = (
        {name.partition("==")[0] for name in requirements(f"images/{i}.lock")} for i in ("operator", "runner")
    )
    assert {"kopf", "kubernetes", "optuna", "prometheus-client", "pydantic"} <= operator
    assert {"torch", "scipy", "deepspeed", "sqlalchemy"}.isdisjoint(operator)
    assert {"deepspeed", "prometheus-client"} <= runner
    assert {"kopf", "kubernetes", "optuna"}.isdisjoint(runner)


@pytest.mark.parametrize("image", ["operator", "runner"])
def test_a_build_gets_every_file_that_it_copies(image: str) -> None:
    allowed = re.findall(r"(?m)^!(.+)", (ROOT / ".dockerignore").read_text())
    copied = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", (ROOT / f"images/{image}.Dockerfile").read_text())
    names = [name for line in copied for name in line.split()]
    assert names
    assert [each for each in names if not any(fnmatch(each, f"{one}*") for one in allowed)] == []
