"""tests/gpu on a bare machine: Python, torch and pytest are there, and nothing else that MemTune is developed with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    assert "tests/gpu/test_gpu_run.py::test_a_job_gets_up_again" in collected.stdout
