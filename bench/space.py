"""How long it takes to enumerate, predict and rank plans; the target is 10,000 candidates in under 1 s.

PYTHONPATH=core python bench/space.py
"""

from __future__ import annotations

import time

from memtune.gpu import find
from memtune.knobs import (
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
from memtune.model.architecture import Architecture, Kind
from memtune.predict import Predictor
from memtune.space import Space, enumerate_plans, rank
from memtune.workload import Workload

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


def main() -> None:
    """Print one line for each space."""
    workload = Workload(
        LLAMA_2_7B, find("h100-80gb"), global_batch=4096, sequence_length=4096, nodes=2, gpus_per_node=8
    )
    print(f"{'space':<30}{'candidates':>12}{'enumerate':>12}{'rank':>10}{'per 10,000':>13}")
    for name, space in SPACES.items():
        start = time.perf_counter()
        plans = enumerate_plans(workload, space)
        middle = time.perf_counter()
        rank(workload, Predictor(workload), plans, headroom=0.06)
        end = time.perf_counter()
        scaled = (end - start) * TARGET_CANDIDATES / len(plans)
        print(f"{name:<30}{len(plans):>12,}{middle - start:>10.3f} s{end - middle:>8.3f} s{scaled:>11.3f} s")


if __name__ == "__main__":
    main()
