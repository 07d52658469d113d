"""Predicted against counted: replayed traces of small models, and the same models trained on counted CPU tensors.

Counted is what a virtual GPU sees of the real libraries: torch's DDP and FSDP2 and DeepSpeed, as rank 0 of several
through torch's fake process group. Nothing is fitted: a trace knows the model, a replay knows the library.
"""

from __future__ import annotations

import argparse
import gc
import logging
import platform
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import fake_ranks
import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from truth_models import BATCH_NORMALIZED, LENGTH, MODELS

from memtune.memory.replay import Replayer, numerics_of
from memtune.plans.plan import Plan
from memtune.units import MIB
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.engine import activation_checkpointing, backend_of, optimizers
from memtune_runner.engine.precision import autocast
from memtune_runner.engine.protocol import Setup
from memtune_runner.rank.settings import Settings
from memtune_runner.tracing import trace_subject
from memtune_runner.tracing.adaptations import replaced, usual_values
from memtune_runner.tracing.computed_constants import KnownNumbers
from memtune_runner.tracing.factory import Subject
from memtune_runner.tracing.kernels import FlashAttention, autocasted
from memtune_runner.virtual.attention import is_for_kernel, plain
from memtune_runner.virtual.gpu import VirtualGpu

WORLD = 4
STEPS = 2
LIMIT_BYTES = 1 << 40
# Models alternate, so that each is traced in a single numerics, since tracing takes the time.
PLANS = (
    ("fp32-ddp-none-mb4x1", "fp32-ddp-full-mb16x2", "fp32-fsdp-full-mb8x2"),
    ("bf16-fsdp-none-mb4x1", "bf16-z2-none-mb4x2-bk100000", "bf16-z3-full-mb8x1-bk100000"),
    ("bf16-ddp-none-mb4x1", "bf16-ddp-sel-mb8x2"),
    ("fp32-ddp-none-mb8x2-foreach", "fp32-ddp-every2-mb16x1", "fp32-ddp-none-mb8x1-lion"),
    ("bf16-z1-none-mb4x1-bk100000", "bf16-fsdpsgo-none-mb4x2", "bf16-z3-none-mb4x2-bk100000"),
)

# A CPU's batch norm rejects 16-bit weights with fp32 statistics, which FSDP and DeepSpeed make of it.
PLANS_WITH_BATCH_NORM = ("fp32-ddp-none-mb4x1", "fp32-fsdp-none-mb8x2", "bf16-ddp-none-mb4x2")


class Row(NamedTuple):
    """One model under one plan."""

    model: str
    plan: Plan
    predicted_bytes: int
    counted_bytes: int

    @property
    def error(self) -> float:
        """Signed relative error; positive if too much was predicted."""
        return self.predicted_bytes / self.counted_bytes - 1


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    """Attention with dropout, which the virtual GPU counts as a GPU's kernel and not as the CPU's."""
    inputs = autocasted(query, key, value) if dropout_p else (query, key, value)
    if dropout_p and is_for_kernel(inputs, attn_mask, is_causal, options.get("enable_gqa", False)):
        return FlashAttention.apply(*inputs, attn_mask)  # type: ignore[no-untyped-call]  # as in kernels
    return plain(*inputs, attn_mask, dropout_p, is_causal, **options)


def replayer(make: Callable[[], Subject], plans: Sequence[str]) -> Replayer:
    """The model traced with the CPU's kernels, since it is counted with them."""
    numerics = {numerics_of(Plan.parse(plan)) for plan in plans}
    with FakeTensorMode(allow_non_fake_inputs=True):
        with KnownNumbers(), usual_values():
            subject = make()
        with replaced(functional, "scaled_dot_product_attention", _attention):
            trace = trace_subject(subject, 2, LENGTH, sorted(numerics), as_gpu=False)
        return Replayer(trace, gpus_per_node=WORLD, rank=0)


def predicted(replaying: Replayer, plan: Plan) -> int:
    """The peak of requested tensor bytes in training; the peak before depends on where a model is built."""
    phases = replaying.replay(plan).phases
    return max(peak.requested for name, peak in phases.items() if name != "init")


def counted(make: Callable[[], Subject], plan: Plan) -> int:
    """The same of a real run."""
    # DeepSpeed's stage 3 replaces torch's product permanently.
    with replaced(functional, "linear", functional.linear), _no_collections(), VirtualGpu(LIMIT_BYTES) as gpu:
        subject = make()
        subject.model.train()
        activation_checkpointing.apply(subject.model, plan.checkpointing)
        backend: Any = backend_of(subject.model, _setup(plan))
        if plan.sharding.backend == "ddp":
            fake_ranks.average_in_place(backend.model)
        gc.collect()
        gpu.reset_peak_memory_stats()
        for _ in range(STEPS):
            for micro in range(plan.accumulation):
                backend.begin(micro == plan.accumulation - 1)
                _micro_batch(subject, backend, plan)
            backend.step()
        return gpu.memory_stats()["requested_bytes.all.peak"]


def _micro_batch(subject: Subject, backend: Any, plan: Plan) -> None:
    batch = subject.batch(plan.micro_batch)
    casts = autocast(plan, torch.device("cpu")) if plan.sharding.backend == "ddp" else nullcontext()
    with casts:
        loss = subject.loss(backend.model, batch)
    backend.backward(loss)


def _setup(plan: Plan) -> Setup:
    settings = Settings(
        plan=plan,
        kind=RunKind.TRAIN,
        integration="sdk",
        global_batch=plan.global_batch(WORLD),
        sequence_length=LENGTH,
        gpus_per_node=WORLD,
        device=Device.VIRTUAL,
        gpu_memory_bytes=LIMIT_BYTES,
    )
    return Setup(settings, torch.device("cpu"), lambda model: optimizers.build(plan, model, 1e-3), 1.0)


@contextmanager
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measured(pairs: dict[str, Sequence[str]]) -> tuple[list[Row], list[str]]:
    """Every model under its plans, and those that could not be traced or trained."""
    rows, refused = [], []
    for name, plans in pairs.items():
        make = MODELS[name]
        try:
            replaying = replayer(make, plans)
        except Exception as error:
            refused.append(f"{name}: {error}")
            continue
        for short in plans:
            plan = Plan.parse(short)
            try:
                rows.append(Row(name, plan, predicted(replaying, plan), counted(make, plan)))
            except Exception as error:
                refused.append(f"{name}, {short}: {type(error).__name__}: {error}")
    return rows, refused


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--plans", nargs="+", help="the same for every model; without it they take turns")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    fake_ranks.join(WORLD)
    rows, refused = measured({name: arguments.plans or _plans(name) for name in arguments.models})
    distributed.destroy_process_group()
    if not rows:
        raise SystemExit("nothing could be compared:\n" + "\n".join(refused))
    print("\n".join(_report(rows, refused)))


def _plans(name: str) -> Sequence[str]:
    if name in BATCH_NORMALIZED:
        return PLANS_WITH_BATCH_NORM
    return PLANS[list(MODELS).index(name) % len(PLANS)]


def _report(rows: Sequence[Row], refused: Sequence[str]) -> list[str]:
    errors = [abs(row.error) for row in rows]
    lines = [
        "# Replayed traces against counted bytes",
        "",
        f"Made by `PYTHONPATH=core:runner:bench python {' '.join(['bench/truth.py', *sys.argv[1:]])}`",
        f"with Python {platform.python_version()} and torch {torch.__version__}; rank 0 of {WORLD}, {STEPS} steps.",
        f"{len(rows)} pairs of {len({row.model for row in rows})} models and {len({row.plan for row in rows})} plans:",
        f"median error {statistics.median(errors):.2%}, worst {max(errors):.2%}; predicted below counted in "
        f"{sum(row.error < 0 for row in rows)} of {len(rows)}.",
        "",
        "| model | plan | counted MiB | predicted MiB | error |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.model} | {row.plan} | {row.counted_bytes / MIB:.2f} | {row.predicted_bytes / MIB:.2f} "
        f"| {row.error:+.2%} |"
        for row in rows
    ]
    return lines + (["", "Not compared:", "", *(f"- {line}" for line in refused)] if refused else [])


if __name__ == "__main__":
    main()
