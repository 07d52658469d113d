"""Time to enumerate, predict and rank plans; the target is 10,000 candidates in under 1 s.

    PYTHONPATH=core python bench/space.py > bench/results/space.md

Wall time is what a person waits; CPU time does not depend on what else the machine does.
"""

from __future__ import annotations

import gc
import platform
import time
from typing import NamedTuple

from memtune.gpus.gpu import find
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture, Kind
from memtune.planning.space import Space, enumerate_plans, rank
from memtune.plans.knobs import (
    FULL,
    NO_CHECKPOINTING,
    SELECTIVE,
    Attention,
    Checkpointing,
    GradientDtype,
    Offload,
    Optimizer,
    Precision,
    Sharding,
)

COMMAND = "PYTHONPATH=core python bench/space.py > bench/results/space.md"
REPEATS = 5

LLAMA_2_7B = Architecture("llama-2-7b", Kind.DECODER, 4096, 32, 32, 32, 128, 11008, 32000)
TARGET_CANDIDATES = 10_000
SPACES = {
    "a job's default": Space(),
    "with offload and fused loss": Space(
        offloads=(Offload.NONE, Offload.ACTIVATIONS, Offload.OPTIMIZER, Offload.PARAMETERS), fused_losses=(False, True)
    ),
    "every knob": Space(
        precisions=(Precision.BF16, Precision.FP16),
        shardings=tuple(Sharding),
        checkpointings=(NO_CHECKPOINTING, SELECTIVE, Checkpointing("every", 2), Checkpointing("every", 4), FULL),
        offloads=tuple(Offload),
        optimizers=(Optimizer.ADAMW, Optimizer.LION),
        gradient_dtypes=tuple(GradientDtype),
        attentions=(Attention.FLASH, Attention.EAGER),
    ),
}


class Cost(NamedTuple):
    """The cost of enumerating and ranking a space."""

    candidates: int
    cpu_seconds: float
    wall_seconds: float


def cost(workload: Workload, space: Space) -> Cost:
    """One cold run: a new predictor, and no garbage of the run before."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    plans = enumerate_plans(workload, space)
    ranking = rank(workload, Predictor(workload), plans, headroom=0.06)
    found = Cost(len(plans), time.process_time() - cpu, time.perf_counter() - wall)
    assert len(plans) == len(ranking.fitting) + len(ranking.uncertain) + len(ranking.dropped)
    return found


def main() -> None:
    """Print one line for each space."""
    workload = Workload(
        LLAMA_2_7B, find("h100-80gb"), global_batch=4096, sequence_length=4096, nodes=2, gpus_per_node=8
    )
    print(f"# Speed of enumerating, predicting and ranking plans\n\nMade by `{COMMAND}`")
    print(f"with Python {platform.python_version()} on {platform.machine()}; best of {REPEATS} by CPU time.")
    print(f"Llama-2-7B on 2 x 8 GPUs. The target is {TARGET_CANDIDATES:,} candidates in under 1 s.\n")
    print("| space | candidates | CPU | wall | CPU per 10,000 | wall per 10,000 |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, space in SPACES.items():
        best = min((cost(workload, space) for _ in range(REPEATS)), key=lambda one: one.cpu_seconds)
        scale = TARGET_CANDIDATES / best.candidates
        print(
            f"| {name} | {best.candidates:,} | {best.cpu_seconds:.3f} s | {best.wall_seconds:.3f} s "
            f"| {best.cpu_seconds * scale:.2f} s | {best.wall_seconds * scale:.2f} s |"
        )


if __name__ == "__main__":
    main()
