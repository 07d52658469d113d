"""What contract tests share: none finds the traces of another, and all have the same terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from api_answers import JOB, ApiServer, api_server, found
from isolation import _kept_apart, _no_breach  # noqa: F401  # fixtures, found by their names
from terminals import _plain_terminal  # noqa: F401  # the same
from told_job import told_job


@contextmanager
def _environment_put_back() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """What a test, or a library in it, tells its children through the environment ends with the test."""
    with _environment_put_back():
        yield


@pytest.fixture(autouse=True, scope="module")
def _own_environment_of_a_module() -> Iterator[None]:
    """The same of what several tests share."""
    with _environment_put_back():
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch with one thread: what its kernels hold beside the tensors depends on how many there are, and on the CPU."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _own_process_group() -> Iterator[None]:
    """A process group that a module's tests have joined ends with them."""
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
    groups: Any = sys.modules.get("deepspeed.utils.groups")
    if groups is not None:
        # DeepSpeed remembers its first world for the life of the process.
        groups._WORLD_GROUP = None


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An API server that has the told job."""
    with api_server() as running:
        running.answer(JOB, found(told_job()))
        yield running


@pytest.fixture
def flags(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """What leads a command to that server, and nowhere else."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    return "--kubeconfig", server.kubeconfig(tmp_path)
