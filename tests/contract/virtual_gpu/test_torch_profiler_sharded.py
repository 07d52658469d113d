"""The virtual GPU against the profiler under DDP, FSDP2 and ZeRO: buckets, shards, gathered weights.

One process is rank 0 of four in torch's fake process group, whose collectives move nothing. Their values are wrong; the
memory held is right.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from memory_truth import assert_agree, counted, profiled
from small_models import CASES, Blocks, Trained, alone, train
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from memtune.plans.deepspeed_config import deepspeed_config
from memtune.plans.plan import Plan

STEPS = 2  # the optimizer's state is new in the first and exists in the second
WORLD = 4

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # DeepSpeed and torch warn about each other's deprecations
]


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[None]:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def deepspeed(four_ranks: None) -> Iterator[Any]:  # noqa: ARG001  # it must be there before DeepSpeed
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", "0")
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed  # type: ignore[import-untyped]  # DeepSpeed ships no types
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled here
    yield deepspeed
    logging.disable(previous)


def ddp(model: Blocks) -> Trained:
    wrapped = DistributedDataParallel(model)
    # The fake group gives the reducer no result to unpack; averaging in place holds as much as a reduction.
    wrapped.register_comm_hook(None, lambda _, bucket: averaged(bucket))
    return alone(wrapped)


def averaged(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer().div_(WORLD))
    return future


def fsdp(model: Blocks) -> Trained:
    mesh = init_device_mesh("cpu", (WORLD,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return alone(model)


def zero(deepspeed: Any, stage: int) -> Callable[[Blocks], Trained]:
    def wrap(model: Blocks) -> Trained:
        config = deepspeed_config(Plan.parse(f"fp32-z{stage}-none-mb4x1-bk20000"), WORLD)
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=config | {"steps_per_print": 1 << 60}, dist_init_required=False
        )
        return Trained(engine, engine.backward, engine.step)

    return wrap


def assert_counted(name: str, wrap: Callable[[Blocks], Trained]) -> None:
    case = CASES[name]

    def loop(step_ended: Callable[[], None]) -> None:
        train(case, False, STEPS, step_ended, wrap)
        gc.collect()  # wrappers and their hooks refer to each other

    gc.collect()
    gc.disable()  # garbage collection decides when memory is free; both runs must agree on it
    try:
        train(case, False, 1, lambda: None, wrap)
        gc.collect()
        truth, (seen, _) = profiled(loop), counted(loop)
    finally:
        gc.enable()
    assert_agree(seen, truth, case.exact, case.excess_bytes)


@pytest.mark.usefixtures("four_ranks")
@pytest.mark.parametrize("name", CASES)
def test_profiler_and_virtual_gpu_agree_under_ddp(name: str) -> None:
    assert_counted(name, ddp)


@pytest.mark.usefixtures("four_ranks")
@pytest.mark.parametrize("name", CASES)
def test_profiler_and_virtual_gpu_agree_under_fsdp(name: str) -> None:
    assert_counted(name, fsdp)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_profiler_and_virtual_gpu_agree_under_zero(name: str, stage: int, deepspeed: Any) -> None:
    assert_counted(name, zero(deepspeed, stage))
