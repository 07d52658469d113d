"""The `memtune` command as a process: what it imports, and output that is closed early."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cli_jobs import DENSE, ROOT


def _run(code: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / package) for package in ("core", "cli"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_plan_imports_no_heavy_library() -> None:
    heavy = ("torch", "kopf", "kubernetes", "optuna", "deepspeed", "matplotlib", "numpy", "rich")
    code = (
        "import sys; from memtune_cli.main import main\n"
        f"main(['plan', {DENSE!r}])\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    ended = _run(code)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


def test_the_parser_alone_imports_neither_pydantic_nor_yaml() -> None:
    code = (
        "import sys; from memtune_cli.arguments import build_parser; build_parser()\n"
        "print([name for name in ('pydantic', 'yaml', 'memtune.memory.formulas') if name in sys.modules])"
    )
    assert _run(code).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("yaml", ["plan", DENSE]),
        ("pydantic", ["plan", DENSE]),
        ("kubernetes", ["status", "a-job"]),
        ("shtab", ["completion", "bash"]),
    ],
)
def test_missing_packages_are_named(package: str, arguments: list[str]) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\nfrom memtune_cli.main import main\nsys.exit(main({arguments!r}))"
    )
    ended = _run(code)
    advice = "pip install '.[cli]' in MemTune's checkout"
    told = f"memtune: memtune {arguments[0]} needs {package}, which is not installed; {advice}\n"
    assert (ended.returncode, ended.stderr) == (2, told)


def test_a_full_disk_is_reported_and_a_closed_output_is_no_error() -> None:
    started = "import os, sys; from memtune_cli.main import main\n"
    full = _run(f"{started}os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nsys.exit(main(['plan', {DENSE!r}]))")
    assert (full.returncode, full.stderr) == (
        2,
        "memtune: standard output cannot be written: No space left on device\n",
    )
    closed = _run(f"{started}sys.stdout = None\nsys.exit(main(['plan', {DENSE!r}]))")
    assert (closed.returncode, closed.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import os, sys; from memtune_cli.main import main\n"
        "reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 1)\n"
        f"sys.exit(main(['plan', {DENSE!r}]))"
    )
    ended = _run(code)
    assert (ended.returncode, ended.stderr) == (0, "")
