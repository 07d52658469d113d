"""The runner as an init container copies it: complete, readable for all, replaced atomically."""

from __future__ import annotations

import os
import subprocess
import sys
from compileall import compile_dir
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from memtune_runner.install import CORE_PACKAGES, main

ROOT = Path(__file__).parents[3]


def test_a_copy_is_complete_and_brings_its_own_packages_under_a_private_name(tmp_path: Path) -> None:
    runner = tmp_path / "memtune" / "runner"
    assert main(str(runner)) == 0
    code = (
        "import sys, memtune_runner.launch.main, memtune.plans.plan\n"
        "from memtune_runner.vendored import prometheus_client\n"
        "client = prometheus_client()\n"
        "print(client.__name__, memtune.__file__, 'pydantic' in sys.modules, 'torch' in sys.modules)\n"
        "print('prometheus_client' in sys.modules)\n"
    )
    # Without this environment's packages, as in an image that has none of them.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(runner)}, capture_output=True, text=True, check=True
    )
    name = "memtune_runner._vendored.prometheus_client"
    assert done.stdout.split() == [name, str(runner / "memtune" / "__init__.py"), "False", "False", "False"]
    assert (runner / "memtune_runner" / "_vendored" / "prometheus_client" / "LICENSE").exists()


def test_only_the_imported_packages_of_the_core_are_copied(tmp_path: Path) -> None:
    assert main(str(tmp_path / "runner")) == 0
    core = tmp_path / "runner" / "memtune"
    assert {each.name for each in core.iterdir() if each.is_dir()} == CORE_PACKAGES
    lines = sum(len(path.read_text().splitlines()) for path in core.rglob("*.py"))
    assert lines <= 6000, "every pod of every job gets these"


def test_every_module_of_a_copy_that_needs_no_torch_can_be_imported(tmp_path: Path) -> None:
    """Nothing else of ours can be imported, so a missing package is noticed."""
    runner = tmp_path / "runner"
    assert main(str(runner)) == 0
    code = (
        "import importlib, pathlib, sys\n"
        f"root = pathlib.Path({str(runner)!r})\n"
        "for path in sorted((root / 'memtune').rglob('*.py')) + sorted((root / 'memtune_runner').rglob('*.py')):\n"
        "    if '_vendored' in path.parts or 'enter' in path.parts or path.name == '__main__.py': continue\n"
        "    name = '.'.join(path.relative_to(root).with_suffix('').parts).removesuffix('.__init__')\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if str(error.name).startswith('memtune'): print(name, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(runner)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def test_every_user_can_read_it_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert main(str(tmp_path / "runner")) == 0
    finally:
        os.umask(before)
    for path in (tmp_path / "runner").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_a_second_copy_replaces_the_first_and_leaves_nothing_else(tmp_path: Path) -> None:
    runner = tmp_path / "runner"
    assert main(str(runner)) == 0
    (runner / "stale.py").write_text("")
    assert main(str(runner)) == 0
    assert sorted(each.name for each in runner.iterdir()) == ["memtune", "memtune_runner"]
    assert list(tmp_path.iterdir()) == [runner]


def test_an_installed_runner_installs_itself_again(tmp_path: Path) -> None:
    """The image has no prometheus-client but ours."""
    assert main(str(tmp_path / "first")) == 0
    command = [sys.executable, "-S", "-m", "memtune_runner", "install", str(tmp_path / "second")]
    subprocess.run(command, env={"PYTHONPATH": str(tmp_path / "first")}, check=True)
    first, second = (
        {each.relative_to(d) for each in d.rglob("*.py")} for d in (tmp_path / "first", tmp_path / "second")
    )
    assert first == second


def test_bytecode_comes_along(tmp_path: Path) -> None:
    """Otherwise each run of `memtune run` would compile the runner anew."""
    assert main(str(tmp_path / "first")) == 0
    compile_dir(tmp_path / "first", quiet=1)
    command = [sys.executable, "-B", "-S", "-m", "memtune_runner", "install", str(tmp_path / "second")]
    subprocess.run(command, env={"PYTHONPATH": str(tmp_path / "first")}, check=True)
    source = tmp_path / "second" / "memtune_runner" / "install.py"
    compiled = Path(cache_from_source(str(source))).read_bytes()
    assert int.from_bytes(compiled[8:12], "little") == int(source.stat().st_mtime), "Python takes it for current"


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(str(tmp_path / "file" / "runner")) == 1
    assert "file/runner: " in capsys.readouterr().err


def test_an_old_python_can_read_the_entry_points() -> None:
    """Checks Python 3.6's grammar, as far as newer versions know it."""
    import ast

    package = ROOT / "runner" / "memtune_runner"
    entered = ("enter/run_worker.py", "enter/sitecustomize.py", "emulated/enter/sitecustomize.py")
    for name in ("__init__.py", "__main__.py", "old_python.py", *entered):
        ast.parse((package / name).read_text(), feature_version=(3, 6))


def test_an_old_python_is_refused_with_a_report(tmp_path: Path) -> None:
    code = (
        "import sys; sys.version_info = (3, 8, 1)\n"
        "from memtune_runner.old_python import refuse_old_python; refuse_old_python()\n"
    )
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "core", ROOT / "runner"))),
        "MEMTUNE_TERMINATION_MESSAGE_PATH": str(tmp_path / "message"),
    }
    done = subprocess.run([sys.executable, "-S", "-c", code], env=variables, capture_output=True, text=True)
    assert done.returncode == 88
    assert "is Python 3.8.1; MemTune needs 3.10 or newer" in done.stderr
    assert '"ending": "bad-input", "exitCode": 88' in (tmp_path / "message").read_text()
