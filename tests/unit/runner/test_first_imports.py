"""Which libraries are imported before a script runs: those that it imports before it does anything else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memtune_runner.command import first_imports
from memtune_runner.command.command import Kind

_PREFIX = "first_imports_"


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of libraries a, b and c."""
    directory = tmp_path / "site-packages"
    directory.mkdir()
    for name in "abc":
        (directory / f"{_PREFIX}{name}.py").write_text("value = 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(directory)])
    yield directory
    for name in [each for each in sys.modules if each.startswith(_PREFIX)]:
        del sys.modules[name]


pytestmark = pytest.mark.usefixtures("libraries")


def imported(directory: Path, script: str, kind: Kind = Kind.SCRIPT, target: str = "train.py") -> str:
    """The letters of the libraries that are imported for a script."""
    (directory / "train.py").write_text(script.replace("lib_", _PREFIX))
    before = list(sys.path)
    first_imports.carry_out(kind, str(directory / target) if kind is Kind.SCRIPT else target)
    assert sys.path == before
    return "".join(name for name in "abc" if f"{_PREFIX}{name}" in sys.modules)


@pytest.mark.parametrize(
    ("script", "letters"),
    [
        ('"""Trains."""\nfrom __future__ import annotations\nimport os, lib_a\nfrom lib_b import value\n', "ab"),
        ("import lib_a\nimport os\nos.environ['A'] = '1'\nimport lib_b\n", "a"),
        ("import lib_a\nlib_a.value = 2\nimport lib_b\n", "a"),
        ("import lib_a\nsize: int = 8\ndef f(): ...\nclass C: ...\nimport lib_b\n", "ab"),
        ("import lib_a\nsize = lib_a.f()\nimport lib_b\n", "a"),
        ("import lib_a\nclass C:\n    size = lib_a.f()\nimport lib_b\n", "a"),
        ("import lib_a\ndef f(size=lib_a.f()): ...\nimport lib_b\n", "a"),
        ("import lib_a\n@lib_a.f(2)\ndef f(): ...\nimport lib_b\n", "a"),
        ("try:\n    import lib_a\nexcept ImportError:\n    pass\nimport lib_b\n", ""),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lib_a\nimport lib_b\n", "b"),
        ("def main():\n    import lib_a\n", ""),
    ],
)
def test_imports_end_where_anything_else_begins(tmp_path: Path, script: str, letters: str) -> None:
    assert imported(tmp_path, script) == letters


@pytest.mark.parametrize(
    ("own", "letters"),
    [("import lib_b\ndef f(): ...\n", "abc"), ("import lib_b\nprint()\n", "ab"), ("print()\nimport lib_b\n", "a")],
)
def test_a_module_of_the_users_is_read_and_not_imported(tmp_path: Path, own: str, letters: str) -> None:
    (tmp_path / "first_imports_own.py").write_text(own.replace("lib_", _PREFIX))
    assert imported(tmp_path, "import lib_a\nfrom lib_own import f\nimport lib_c\n") == letters
    assert "first_imports_own" not in sys.modules


def test_packages_of_the_users_are_read_with_their_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "first_imports_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "data.py").write_text(f"import {_PREFIX}b\n")
    (package / "model.py").write_text(f"from . import data\nimport {_PREFIX}a\n")
    assert imported(tmp_path, "from lib_package.model import f\nimport lib_c\n") == "abc"


def test_a_module_that_is_run_as_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "first_imports_package"
    package.mkdir()
    (package / "__init__.py").write_text(f"import {_PREFIX}a\n")
    (package / "__main__.py").write_text(f"import {_PREFIX}b\nprint()\nimport {_PREFIX}c\n")
    assert imported(tmp_path, "", Kind.MODULE, "first_imports_package") == "ab"


def test_a_failing_import_is_raised(libraries: Path, tmp_path: Path) -> None:
    (libraries / f"{_PREFIX}a.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        imported(tmp_path, "import lib_a\n")
