"""Measures one pair in this process, and prints what it took as one line of JSON: a process for each pair.

python bench/gpu_measure.py MODEL PLAN WORLD [--fixture FILE] [--record none|events|stacks]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import fake_ranks
import gpu_snapshot
import torch
from gpu_pairs import GPUS_PER_NODE, LENGTH, MODELS, Pair
from torch import nn
from torch.nn import functional

from memtune.model.architecture import Architecture
from memtune.plans.knobs import Offload
from memtune.plans.plan import Plan
from memtune.wire.environment import EMULATED_GPU
from memtune.wire.exit_codes import EXIT_CODES
from memtune.wire.report import Device, Ending
from memtune.wire.run import RunKind
from memtune_runner.device.statistics import CudaStatistics, Statistics, is_full
from memtune_runner.emulated.known_values import MOST_FLOATS
from memtune_runner.engine import PlanError, activation_checkpointing, backend_of, optimizers, precision
from memtune_runner.engine.decoder import Decoder
from memtune_runner.engine.offload import ActivationOffload
from memtune_runner.engine.protocol import Backend, Setup
from memtune_runner.rank import allocator_settings
from memtune_runner.rank.failure_causes import of_exception
from memtune_runner.rank.settings import Settings

STEPS = int(os.environ.get("MEASURED_STEPS", "4"))  # the first of them warms up
REFUSED, RAN_OUT = 2, EXIT_CODES[Ending.DEVICE_OOM]
RECORDED = ("none", "events", "stacks")
_DRAWN = 1 << 20


class Measured(NamedTuple):
    """The memory of a pair during its steps. ``device_bytes`` is the driver's count, with the context and NCCL.

    ``building_bytes`` is the reserved peak before the first step, for what is then sharded or cast.
    """

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    step_seconds: float
    building_bytes: int


def measure(pair: Pair, facts: Architecture, length: int, device: torch.device, memory: Statistics) -> Measured:
    """Train a few steps, and read the counters."""
    plan = Plan.parse(pair.plan)
    backend, tokens = _built(pair, facts, length, device), _tokens(facts, plan, length, device)
    building_bytes = _end_building(memory)
    seconds, skipped = [], []
    for _ in range(STEPS):
        began = time.monotonic()
        for micro in range(plan.accumulation):
            backend.begin(micro == plan.accumulation - 1)
            scalar = _loss(backend, plan, tokens, device)  # a variable of its own, since it holds the logits
            backend.backward(scalar)
            del scalar
        skipped.append(backend.step().skipped)
        memory.synchronize()
        seconds.append(time.monotonic() - began)
    if all(skipped):
        # Data received from a fake rank may not be valid numbers.
        raise RuntimeError("the loss scale skipped every step, so the optimizer's states were never made")
    reading = memory.read()
    assert reading is not None  # the device is in use
    return Measured(
        reading.peak_allocated_bytes,
        reading.peak_reserved_bytes,
        reading.peak_reserved_bytes + (reading.non_torch_bytes or 0),
        statistics.median(seconds[1:]),
        building_bytes,
    )


def _end_building(memory: Statistics) -> int:
    """The peak of building, after which counters and cache are reset for the steps."""
    reading = memory.read()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    memory.reset_peaks()
    return reading.peak_reserved_bytes if reading else 0


def _built(pair: Pair, facts: Architecture, length: int, device: torch.device) -> Backend:
    plan, per_node = Plan.parse(pair.plan), min(pair.world, GPUS_PER_NODE)
    settings = Settings(
        plan=plan,
        kind=RunKind.TRAIN,
        integration="sdk",
        global_batch=plan.global_batch(pair.world),
        sequence_length=length,
        nodes=pair.world // per_node,
        gpus_per_node=per_node,
        device=Device.CUDA,
    )
    with _drawn_once():
        model = WithLoss(Decoder(facts, plan.attention))
    precision.prepare(model, plan, device)
    activation_checkpointing.apply(model, plan.checkpointing)
    backend = backend_of(model, Setup(settings, device, lambda each: optimizers.build(plan, each, 1e-4), 1.0))
    if plan.sharding.backend == "ddp":
        fake_ranks.average_in_place(backend.model)
    return backend


@contextmanager
def _drawn_once() -> Iterator[None]:
    """Weights are copies of a few random numbers: drawing billions on the CPU would dominate the time.

    An emulated GPU follows no numbers of large weights, so these have none, and take no memory of the host.
    """
    drawn = torch.empty(_DRAWN).normal_(std=0.02)

    def copied(weight: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if EMULATED_GPU in os.environ and weight.numel() > MOST_FLOATS:
            return weight
        with torch.no_grad():
            for part in weight.view(-1).split(_DRAWN):
                part.copy_(drawn[: len(part)])
        return weight

    with ExitStack() as stack:
        for name in ("normal_", "kaiming_uniform_"):
            stack.enter_context(mock.patch.object(torch.nn.init, name, copied))
        yield


def _tokens(facts: Architecture, plan: Plan, length: int, device: torch.device) -> torch.Tensor:
    return torch.randint(0, facts.vocab_size, (plan.micro_batch, length), device=device)


def _loss(backend: Backend, plan: Plan, tokens: torch.Tensor, device: torch.device) -> torch.Tensor:
    with ExitStack() as stack:
        stack.enter_context(precision.autocast(plan, device))
        if plan.offload is Offload.ACTIVATIONS:
            stack.enter_context(ActivationOffload())
        return loss(backend.model, tokens)


class WithLoss(nn.Module):
    """A decoder that computes its own loss, like transformers', so that gathered weights exist during the loss.

    The loss is in fp32, as in libraries. Each token predicts itself instead of the next, which takes the same memory.
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.decoder(tokens)
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()), logits


def loss(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The loss, with the logits kept as a training loop's variable would, until the next micro-batch."""
    found: torch.Tensor
    found, logits = model(tokens)
    found.held_by_the_loop = logits  # type: ignore[attr-defined]  # tensors take attributes
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one pair on this machine's first GPU; an exit code and one sentence say why it failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("plan")
    parser.add_argument("world", type=int)
    parser.add_argument("--fixture", type=Path, help="where the allocator's events are kept")
    parser.add_argument(
        "--record", choices=RECORDED, default="none", help="what torch records of each allocation (--fixture: events)"
    )
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    device, pair = torch.device("cuda", 0), Pair(options.model, options.plan, options.world)
    torch.cuda.set_device(device)
    if options.record != "none" or options.fixture:
        context = "all" if options.record == "stacks" else None
        torch.cuda.memory._record_memory_history(context=context, stacks="python", max_entries=gpu_snapshot.MOST_EVENTS)
    fake_ranks.join(pair.world)
    memory = CudaStatistics(None)
    with gpu_snapshot.noticed_emptying() as emptied:
        code = print_measured(lambda: measure(pair, MODELS[pair.model], LENGTH, device, memory), memory)
    if options.fixture and code in (0, RAN_OUT):
        retries = int(torch.cuda.memory_stats().get("num_alloc_retries", 0))
        snapshot = torch.cuda.memory._snapshot()
        if gpu_snapshot.is_whole(snapshot):
            fixture = gpu_snapshot.fixture_of(snapshot, torch.__version__, emptied, retries=retries)
            gpu_snapshot.write(fixture, options.fixture)
        else:
            print(f"{pair} has no fixture: it has {gpu_snapshot.MOST_EVENTS:,} events or more", file=sys.stderr)
    return code


def print_measured(measuring: Callable[[], Measured], memory: Statistics) -> int:
    """Print the measurement. The exit code says if a plan was refused or the GPU ran out of memory."""
    try:
        print(json.dumps(measuring()._asdict()))
    except PlanError as error:
        print(error, file=sys.stderr)
        return REFUSED
    except Exception as error:
        failure = of_exception(error, lambda: is_full(memory))
        if failure.ending is not Ending.DEVICE_OOM:
            raise
        print(failure.message, file=sys.stderr)
        return RAN_OUT
    return 0


def command(pair: Pair, fixture: Path | None = None, record: str = "none") -> list[str]:
    """The command line that measures a pair."""
    words = [sys.executable, str(Path(__file__)), pair.model, pair.plan, str(pair.world), "--record", record]
    return [*words, "--fixture", str(fixture)] if fixture else words


def variables(pair: Pair, current: dict[str, str]) -> dict[str, Any]:
    """Its environment: torch reads the plan's allocator settings at import."""
    # pytest finds our packages by itself, but its children would not.
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return {**current, **path, **allocator_settings.variables(Plan.parse(pair.plan), current)}


def end(code: int) -> NoReturn:
    """End this process at once: one of torch's threads may abort it at Python's exit, after the measurement."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
