"""Trains a model under several plans on the emulated GPU, each in a fork of this process, after all imports.

    python bench/emulated_pair_run.py FILE MODEL PLAN:RANKS [PLAN:RANKS ...]

Run by `memtune emulate`. Each plan adds a line of JSON to FILE: its measured memory, or why it could not run.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from emulated_pair_list import GPUS_PER_NODE
from emulated_pair_models import build
from torch import distributed, nn

from memtune.plans.knobs import Offload
from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.emulated import process, rendezvous
from memtune_runner.engine import activation_checkpointing, backend_of, optimizers, precision
from memtune_runner.engine.offload import ActivationOffload
from memtune_runner.engine.protocol import Backend, Setup
from memtune_runner.rank.settings import Settings

# The steps after which reserved bytes are read, where the lengths of batches vary.
AFTER = (3, 10, 30, 100)
STEPS = 3  # the second is the first with the optimizer's states
LIMIT_SECONDS = 300
_ENDLESS_BYTES = 1 << 42  # no memory limit: the benchmark measures use, not fit
Wrap = Callable[[nn.Module, Setup], Backend]


def measure(
    model: str,
    words: str,
    ranks: int,
    limit_bytes: int = _ENDLESS_BYTES,
    lengths: Sequence[int] = (),
    wrap: Wrap = backend_of,
) -> dict[str, Any]:
    """Train as rank 0 with ``limit_bytes`` for torch's allocator, and read its counters.

    Batches have ``lengths`` one after the other; without these all are as long as the model's, for three steps.
    ``wrap`` makes the backend.
    """
    began, computed = time.monotonic(), time.process_time()
    plan = Plan.parse(words)
    process.resize(_ENDLESS_BYTES)
    if plan.expandable_segments:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    device = torch.device("cuda", 0)
    _join(ranks)
    built, batch, loss = build(model, device)
    precision.prepare(built, plan, device)
    activation_checkpointing.apply(built, plan.checkpointing)
    backend = wrap(built, Setup(_settings(plan, ranks), device, lambda m: optimizers.build(plan, m, 1e-4), 1.0))
    del built
    gc.collect()
    torch.cuda.empty_cache()
    # Building may take more than training, which alone is measured.
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    process.resize(limit_bytes + total_bytes - free_bytes - torch.cuda.memory_reserved())
    torch.cuda.reset_peak_memory_stats()
    skipped: list[bool] = []
    reserved: list[int] = []
    waiting = list(reversed(lengths))
    while waiting if lengths else len(skipped) < STEPS:
        for micro in range(plan.accumulation):
            backend.begin(micro == plan.accumulation - 1)
            inputs = batch(plan.micro_batch)
            if lengths:
                length = waiting.pop()
                inputs = {name: each[:, :length].contiguous() for name, each in inputs.items()}
            with ExitStack() as stack:
                stack.enter_context(precision.autocast(plan, device))
                if plan.offload is Offload.ACTIVATIONS:
                    stack.enter_context(ActivationOffload())
                found = loss(backend.model, inputs)
            backend.backward(found)
            del found, inputs
        skipped.append(backend.step().skipped)
        reserved.append(torch.cuda.memory_reserved())
    if all(skipped):
        raise RuntimeError("the loss scale skipped every step, so the optimizer's states were never made")
    statistics = torch.cuda.memory_stats()
    return {
        "allocatedBytes": statistics["allocated_bytes.all.peak"],
        "reservedBytes": statistics["reserved_bytes.all.peak"],
        "retries": statistics["num_alloc_retries"],
        "seconds": round(time.monotonic() - began, 1),
        "cpuSeconds": round(time.process_time() - computed, 1),
        "hostBytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **({"reservedAfter": {step: reserved[step - 1] for step in AFTER if step <= len(reserved)}} if lengths else {}),
    }


def _join(ranks: int) -> None:
    per_node = min(ranks, GPUS_PER_NODE)
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(per_node),
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29500",
    )  # fmt: skip
    rendezvous.install(ranks)
    torch.cuda.set_device(0)
    distributed.init_process_group("cpu:gloo,cuda:nccl")


def _settings(plan: Plan, ranks: int) -> Settings:
    per_node = min(ranks, GPUS_PER_NODE)
    return Settings(
        plan=plan, kind=RunKind.TRAIN, integration="sdk", global_batch=plan.global_batch(ranks), sequence_length=1,
        nodes=ranks // per_node, gpus_per_node=per_node, device=Device.CUDA,
    )  # fmt: skip


def import_all(model: str) -> None:
    """Import once for all forks."""
    import deepspeed  # type: ignore[import-untyped]  # noqa: F401

    with torch.device("meta"):
        build(model, torch.device("meta")) if "qlora" not in model else None
    gc.collect()


def in_a_fork(model: str, words: str, ranks: int, **options: Any) -> dict[str, Any]:
    """Measure a plan with options of `measure` in a fork of this process: its memory, or the problem that it had."""
    answer, told = os.pipe()
    child = os.fork()
    if child:
        os.close(told)
        with os.fdopen(answer) as lines:
            found = lines.read()
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return dict(json.loads(found)) if found else {"problem": f"it ended with {code}"}
    signal.alarm(LIMIT_SECONDS)
    # A driver would not work in a fork; the emulated GPU is memory of the process, and none is allocated yet.
    torch.cuda._is_in_bad_fork = lambda: False
    try:
        result: dict[str, Any] = measure(model, words, ranks, **options)
    except BaseException as error:
        if "limit_bytes" not in options:  # of which the end by an out-of-memory is expected
            traceback.print_exc()
        result = {"problem": f"{type(error).__name__}: {error}"[:300]}
    os.write(told, json.dumps(result).encode())
    sys.stderr.flush()
    os._exit(0)


def tell(file: Path, line: dict[str, Any]) -> None:
    """Add a line of JSON to the file."""
    with file.open("a", encoding="utf-8") as kept:
        kept.write(json.dumps(line) + "\n")


def main(arguments: list[str], measured: Callable[[str, str, int], dict[str, Any]] = in_a_fork) -> int:
    """Run the plans one after the other."""
    warnings.simplefilter("ignore")
    began = time.monotonic()
    file, model, *pairs = arguments
    import_all(model)
    print(f"imports: {time.monotonic() - began:.1f} s", file=sys.stderr)
    for pair in pairs:
        plan, _, ranks = pair.partition(":")
        tell(Path(file), {"model": model, "plan": plan, "ranks": int(ranks), **measured(model, plan, int(ranks))})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
