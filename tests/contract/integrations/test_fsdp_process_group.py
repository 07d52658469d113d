"""The backends of a process group under FSDP with the Trainer and accelerate, on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import distributed

from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner import integrations
from memtune_runner.rank.imports import ImportWatch
from memtune_runner.rank.patches import Patches
from memtune_runner.rank.progress import Trained
from memtune_runner.rank.settings import Settings


class BegunError(Exception):
    """Ends a script where its process group would start."""


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    from accelerate.state import (  # type: ignore[import-untyped]  # accelerate ships no types
        AcceleratorState,
        PartialState,
    )
    from accelerate.utils import DistributedType  # type: ignore[import-untyped]  # as above

    backends: list[str] = []

    def init_process_group(backend: str, **_: Any) -> None:
        backends.append(backend)
        raise BegunError

    def prepare_backend(_state: Any, _cpu: bool, _sagemaker: bool, backend: str | None = None) -> tuple[str, Any]:
        return backend or "nccl", DistributedType.MULTI_GPU

    monkeypatch.setattr(distributed, "init_process_group", init_process_group)
    monkeypatch.setattr(PartialState, "_prepare_backend", prepare_backend)
    monkeypatch.setenv("LOCAL_RANK", "0")
    AcceleratorState._reset_state(reset_partial_state=True)
    yield backends
    # The interrupted initialization is state of the whole process.
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def patches() -> Iterator[Patches]:
    patches = Patches()
    yield patches
    patches.undo()


@pytest.mark.parametrize(
    ("plan", "backend"),
    [("fp32-fsdp-none-mb1x1-oparam", "cuda:nccl,cpu:gloo"), ("fp32-fsdp-none-mb1x1", "nccl")],
)
@pytest.mark.parametrize("integration", ["hf-trainer", "accelerate"])
def test_gradients_on_the_host_have_one_that_adds_them_up_there(
    integration: str, plan: str, backend: str, begun: list[str], patches: Patches
) -> None:
    settings = Settings(Plan.parse(plan), RunKind.TRAIN, integration, 1, 32, device=Device.CUDA, gpu_memory_bytes=1)
    from accelerate import Accelerator  # type: ignore[import-untyped]  # accelerate ships no types
    from transformers import TrainingArguments

    integrations.install(settings, None, ImportWatch(), patches, lambda: Trained(0, 0), lambda: 0)
    with pytest.raises(BegunError):
        Accelerator() if integration == "accelerate" else TrainingArguments(output_dir="unused")
    assert begun == [backend]
