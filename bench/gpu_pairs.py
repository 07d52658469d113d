"""The pairs to measure on a GPU: decoders from 0.1B to 13B under plans of every library, format and checkpointing.

Imports no torch, since the list is also used without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from memtune.gpus.gpu import Gpu
from memtune.memory.formulas.terms import DRIVER_OVERHEAD, INIT
from memtune.memory.prediction import Interval, Prediction
from memtune.memory.predictor import Calibration, Predictor
from memtune.memory.traced_model import TracedModel
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture
from memtune.model.plain import from_facts
from memtune.plans.plan import Plan

LENGTH = 2048
GPUS_PER_NODE = 8


def _llama(hidden: int, layers: int, heads: int, ffn: int, kv_heads: int | None = None) -> Architecture:
    facts = {"hiddenSize": hidden, "layers": layers, "heads": heads, "kvHeads": kv_heads or heads, "ffnSize": ffn}
    return from_facts({**facts, "vocabSize": 32_000, "gatedFfn": True, "norm": "rmsnorm", "name": f"{hidden}x{layers}"})


# In order of size.
SMALLEST = "0.03B"  # of tests, in no pair that is listed
MODELS = {
    SMALLEST: _llama(384, 6, 6, 1024),
    "0.1B": _llama(768, 12, 12, 2048),
    "0.5B": _llama(1280, 20, 20, 3456),
    "1.1B": _llama(2048, 22, 32, 5632, kv_heads=4),
    "3B": _llama(2560, 32, 32, 6912),
    "7B": _llama(4096, 32, 32, 11_008),
    "13B": _llama(5120, 40, 40, 13_824),
}


class Pair(NamedTuple):
    """A model under a plan, on rank 0 of ``world``; other ranks are fake."""

    model: str
    plan: str
    world: int = 1

    @property
    def is_alone(self) -> bool:
        """Whether nothing is missing: neither other ranks nor NCCL."""
        return self.world == 1

    def __str__(self) -> str:
        return f"{self.model}, {self.plan}" + ("" if self.is_alone else f", rank 0 of {self.world}")


def _pairs(world: int, plans: dict[str, str]) -> list[Pair]:
    return [Pair(model, plan, world) for model, listed in plans.items() for plan in listed.split()]


PAIRS = (
    *_pairs(
        1,
        {
            "0.1B": "fp32-ddp-none-mb4x1 tf32-ddp-none-mb8x2 bf16-ddp-none-mb16x1 fp16-ddp-sel-mb16x2 "
            "bf16-z0-none-mb8x1",
            "0.5B": "bf16-ddp-none-mb4x1 bf16-ddp-full-mb16x2 fp32-ddp-every2-mb4x1 bf16-z1-none-mb4x2 "
            "fp16-z2-full-mb8x1 bf16-fsdp-none-mb4x1 fp8-ddp-none-mb4x1",
            "1.1B": "bf16-ddp-sel-mb2x2 bf16-z2-none-mb2x1 bf16-z3-full-mb8x2 bf16-fsdp-full-mb8x1-exp "
            "bf16-z2-full-mb4x2-oopt",
            "3B": "bf16-z1-full-mb4x1 bf16-fsdp-full-mb2x1-oparam",
        },
    ),
    *_pairs(
        2,
        {
            "0.5B": "bf16-ddp-none-mb4x2 fp32-fsdp-every2-mb4x1",
            "1.1B": "bf16-z1-none-mb2x1 fp16-z2-sel-mb2x2 bf16-fsdpsgo-none-mb2x1",
            "3B": "bf16-z3-full-mb4x1",
        },
    ),
    *_pairs(
        8,
        {
            "0.1B": "bf16-z2-none-mb16x1 tf32-fsdp-none-mb8x1",
            "1.1B": "bf16-z1-full-mb8x2 bf16-fsdp-none-mb4x1",
            "3B": "bf16-z2-full-mb4x1 bf16-z3-sel-mb2x2 fp16-fsdp-full-mb4x1",
            "7B": "bf16-z2-full-mb2x1 bf16-z3-full-mb4x2 bf16-fsdp-full-mb4x1",
        },
    ),
    *_pairs(
        64,
        {
            "3B": "bf16-z3-none-mb1x1 bf16-fsdp-every2-mb4x1",
            "7B": "bf16-z3-sel-mb2x1 bf16-fsdp-none-mb1x2",
            "13B": "bf16-z3-full-mb4x1",
        },
    ),
)

# For a single real rank: every way of keeping fewer bytes.
SINGLE_GPU_PLANS = (
    "bf16-ddp-none-mb1x1",
    "bf16-ddp-none-mb2x2",
    "bf16-ddp-sel-mb2x1",
    "bf16-ddp-every2-mb4x1",
    "bf16-ddp-full-mb8x1",
    "bf16-ddp-full-mb2x1-exp",
    "bf16-z0-full-mb2x1",
    "bf16-z1-none-mb1x1",
    "bf16-z2-full-mb4x2",
    "bf16-z3-full-mb2x1",
    "bf16-fsdp-full-mb4x1",
    "fp32-fsdp-full-mb1x1",
)
_SINGLE_GPU_MODELS = ("0.5B", "1.1B", "3B", "7B")


def in_turns(pairs: Iterable[Pair]) -> list[Pair]:
    """One pair of each model on each number of ranks, then the next of each: a cut-off has something of everything."""
    groups: dict[tuple[str, int], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.model, pair.world), []).append(pair)
    turns = zip_longest(*groups.values())
    return [pair for turn in turns for pair in turn if pair is not None]


def workload(pair: Pair, gpu: Gpu, traced: TracedModel | None = None, length: int = LENGTH) -> Workload:
    """The predictor's workload for a pair, by formulas or by a trace; of several ranks, one is real."""
    per_node = min(pair.world, GPUS_PER_NODE)
    return Workload(
        model=traced or MODELS[pair.model],
        gpu=gpu,
        global_batch=Plan.parse(pair.plan).global_batch(pair.world),
        sequence_length=length,
        nodes=pair.world // per_node,
        gpus_per_node=per_node,
        fake_ranks=True,
    )


@lru_cache(maxsize=256)
def prediction(
    pair: Pair, gpu: Gpu, traced: TracedModel | None = None, calibration: Calibration | None = None
) -> Prediction:
    """The prediction for a pair; without a calibration, uncorrected."""
    return Predictor(workload(pair, gpu, traced), calibration).predict(Plan.parse(pair.plan))


def building_bytes(pair: Pair, gpu: Gpu) -> float:
    """Bytes that formulas say are allocated before the first step, for the model and its wrapper. cuBLAS takes its
    workspaces with the first product; memory outside the allocator is not included either.

    The model is built whole: stage 3 has all of it on the GPU before it shards it.
    """
    terms = Predictor(replace(workload(pair, gpu), builds_whole=True)).explain(Plan.parse(pair.plan))
    return sum(each.bytes for each in terms if INIT in each.phases and each.name not in (*DRIVER_OVERHEAD, "workspace"))


def nccl(pair: Pair, gpu: Gpu) -> Interval:
    """The memory that NCCL would take in addition with real ranks."""
    whole = replace(workload(pair, gpu), fake_ranks=False)
    components = Predictor(whole).predict(Plan.parse(pair.plan)).components
    return next((each.bytes for each in components if each.name == "nccl"), Interval(0.0, 0.0, 0.0))


def split(pairs: Iterable[Pair], gpu: Gpu) -> tuple[list[Pair], list[Pair]]:
    """The pairs that may fit a GPU, and those whose lower bound does not."""
    may: list[Pair] = []
    cannot: list[Pair] = []
    for pair in pairs:
        (cannot if prediction(pair, gpu).cannot_fit(gpu.usable_bytes) else may).append(pair)
    return may, cannot


def single_gpu_pairs(gpu: Gpu) -> Sequence[Pair]:
    """The twelve plans, for the largest model whose every upper bound fits; else for the smallest."""
    found = [[Pair(model, plan) for plan in SINGLE_GPU_PLANS] for model in _SINGLE_GPU_MODELS]
    fitting = [each for each in found if all(prediction(one, gpu).fits(gpu.usable_bytes, 0.0) for one in each)]
    return fitting[-1] if fitting else found[0]
