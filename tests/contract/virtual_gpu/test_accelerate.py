"""On a virtual GPU, accelerate uses the CPU, however a script initializes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner import integrations
from memtune_runner.rank.imports import ImportWatch
from memtune_runner.rank.patches import Patches
from memtune_runner.rank.progress import Trained
from memtune_runner.rank.settings import Settings


@pytest.fixture
def state() -> Iterator[Any]:
    """accelerate's state under the integration, uninitialized."""
    from accelerate.state import PartialState  # type: ignore[import-untyped]  # accelerate ships no types

    plan = Plan.parse("fp32-ddp-none-mb1x1")
    settings = Settings(plan, RunKind.TRAIN, "accelerate", 1, 32, device=Device.VIRTUAL, gpu_memory_bytes=1)
    patches = Patches()
    integrations.install(settings, None, ImportWatch(), patches, lambda: Trained(0, 0), lambda: 0)
    PartialState._reset_state()
    yield PartialState
    patches.undo()
    PartialState._reset_state()


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((True,), {}), ((False,), {}), ((), {"cpu": True}), ((), {"cpu": False})],
)
def test_accelerates_state_starts_on_the_cpu(args: tuple[bool, ...], kwargs: dict[str, bool], state: Any) -> None:
    assert state(*args, **kwargs)._cpu is True


def test_the_trainers_arguments_may_name_the_cpu(state: Any) -> None:
    from transformers import TrainingArguments

    assert TrainingArguments(output_dir="unused", use_cpu=True).distributed_state._cpu is True
    assert state().device.type == "cpu"
