"""tests/gpu on a bare machine with only Python, torch and pytest, and where they write."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
# What `make env` brings and an image with a CUDA build of torch need not have.
_BARE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import pytest
options = ["--collect-only", "-q", "-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider"]
sys.exit(pytest.main(["tests/gpu", *options]))
"""
MISSING = {"pydantic", "pydantic_core", "kopf", "kubernetes", "optuna", "deepspeed", "hypothesis", "shtab", "yaml"}


def test_the_tests_are_collected_without_the_development_environment() -> None:
    collected = subprocess.run(
        [sys.executable, "-c", _BARE.format(missing=MISSING)],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert collected.returncode == 0, collected.stdout[-3000:] + collected.stderr[-1000:]
    assert "tests/gpu/test_gpu_run.py::test_a_job_recovers_from_an_out_of_memory" in collected.stdout


@pytest.mark.parametrize(
    ("sharding", "installed", "is_tried"),
    [
        ("ddp", "torchao", True),
        ("fsdp", "torchao", True),
        ("z2", "torchao", False),
        ("z2", "bitsandbytes", True),
        ("fsdp", "bitsandbytes", False),
        ("ddp", None, False),
    ],
)
def test_states_in_8_bits_are_tried_where_a_library_has_them_for_the_plan(
    sharding: str, installed: str | None, is_tried: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("gpu_scripts", ROOT / "tests" / "gpu" / "test_gpu_scripts.py")
    assert spec
    assert spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tried: list[str] = []
    monkeypatch.setattr(module, "find_spec", lambda name: name == installed or None)
    monkeypatch.setattr(module, "run", lambda _, plan, *__, **___: tried.append(plan))
    monkeypatch.setattr(module, "assert_followed_plan", lambda *_: None)
    with suppress(pytest.skip.Exception):
        module.test_an_optimizer_keeps_its_states_in_8_bits(sharding, tmp_path)
    assert tried == [f"bf16-{sharding}-none-mb4x2-adamw8bit"] * is_tried


@pytest.mark.parametrize("options", [(), ("--results", "kept")])
def test_nothing_is_kept_unless_a_directory_is_named(options: tuple[str, ...], tmp_path: Path) -> None:
    """A file in the checkout that nobody asked for would be committed, or make it another one."""
    gpu = tmp_path / "checkout" / "tests" / "gpu"
    gpu.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "gpu" / "conftest.py", gpu)
    (gpu / "test_writes.py").write_text("def test_writes(results): (results / 'fixtures.jsonl').touch()\n")
    (tmp_path / "cuda_requirements.py").write_text("IS_EMULATED = True\ndef why_not(): return None\n")
    path = os.pathsep.join(map(str, (tmp_path, ROOT / "core", ROOT / "runner")))
    where = ("--basetemp", str(tmp_path / "temporary"), "-p", "no:cacheprovider", "--rootdir", str(gpu))
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-c", os.devnull, *where, *options, str(gpu)],
        cwd=tmp_path / "checkout",
        env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    found = [each.relative_to(tmp_path / "checkout") for each in (tmp_path / "checkout").rglob("*.jsonl")]
    assert found == ([Path("kept", "fixtures.jsonl")] if options else [])
