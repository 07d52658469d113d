"""Fixtures of the contract tests: each test is isolated from the others and sees the same terminal."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_api_server import JOB, ApiServer, api_server, found
from isolation import _kept_apart, _no_breach  # noqa: F401  # fixtures, found by their names
from job_with_history import job_with_history
from terminals import _plain_terminal  # noqa: F401  # the same

_known_modules = 0
_MANY_MODULES = 100


def pytest_runtest_setup() -> None:
    """Exempt what libraries have left since they were imported from garbage collection.

    Tracing collects several times for each model; of all that torch and transformers have, each takes half a second.
    """
    global _known_modules
    if len(sys.modules) - _known_modules > _MANY_MODULES:
        gc.collect()
        gc.freeze()
        _known_modules = len(sys.modules)


@contextmanager
def _environment_put_back() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Undo what a test, or a library in it, sets in the environment."""
    with _environment_put_back():
        yield


@pytest.fixture(autouse=True, scope="module")
def _own_environment_of_a_module() -> Iterator[None]:
    """Do the same for what the tests of a module share."""
    with _environment_put_back():
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Run torch with one thread: its kernels' temporaries depend on the number of threads and on the CPU."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _own_process_group() -> Iterator[None]:
    """End a process group with the module whose tests joined it."""
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
    groups: Any = sys.modules.get("deepspeed.utils.groups")
    if groups is not None:
        # DeepSpeed keeps its first world for the life of the process.
        groups._WORLD_GROUP = None


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """Start an API server with the told job."""
    with api_server() as running:
        running.answer(JOB, found(job_with_history()))
        yield running


@pytest.fixture
def flags(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return the flags that lead a command to that server and nowhere else."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    return "--kubeconfig", server.kubeconfig(tmp_path)
