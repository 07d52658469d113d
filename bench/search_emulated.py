"""Tables of emulated memory for `search.py`: every plan of a job, run with the real libraries on the emulated GPU.

    PYTHONPATH=core:operator:bench python bench/search_emulated.py

runs what bench/results/emulated-grid.jsonl lacks, some seconds each. Needs `make env-emulated`.

Memory is the emulated reserved peak and 0.5 GiB for the contexts of CUDA and NCCL, which is assumed; of steps with more
than two micro-batches, two were emulated. Speed is the prediction times the hidden factors of search_tables.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import NamedTuple

from emulated_pair_list import MODELS, Pair
from emulated_pairs import read, run_missing
from search_published import PublishedModel, PublishedTable
from search_tables import HEADROOM, Hidden, Row

from memtune.gpus.gpu import find
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.huggingface import from_hf_config
from memtune.planning.space import THROUGHPUT, Space, enumerate_plans, rank
from memtune.plans.knobs import Sharding
from memtune.plans.plan import Plan
from memtune.units import GIB

FILE = Path(__file__).parent / "results" / "emulated-grid.jsonl"
# For each rank and step.
SAMPLES = 16
# The third micro-batch of a step takes what the second one takes.
_MOST_ACCUMULATION = 2
_OUTSIDE_BYTES = GIB // 2
_STAGES = (Sharding.ZERO_0, Sharding.ZERO_1, Sharding.ZERO_2)


class Grid(NamedTuple):
    """A job whose every plan was emulated."""

    model: str
    ranks: int
    gpu: str

    @property
    def name(self) -> str:
        """The job in words."""
        return f"{self.model} on {self.ranks} x {self.gpu}"

    @property
    def workload(self) -> Workload:
        """The predictor's inputs."""
        model = MODELS[self.model]
        return Workload(
            model=from_hf_config(model.hf_config),
            gpu=find(self.gpu),
            global_batch=SAMPLES * self.ranks,
            sequence_length=model.length,
            gpus_per_node=self.ranks,
            without_autocast=True,
        )

    def pairs(self) -> dict[Plan, Pair]:
        """The emulated run of each plan."""
        return {
            plan: Pair(self.model, str(_shortened(plan)), self.ranks)
            for plan in enumerate_plans(self.workload, Space(shardings=_STAGES))
        }

    def table(self, seed: int) -> PublishedTable:
        """The truth at a seed: memory is the same at each."""
        workload, found = self.workload, read(FILE)
        predictor, hidden = Predictor(workload), Hidden(Random(f"{self.name}/{seed}"))
        rows = {}
        for plan, pair in self.pairs().items():
            result, predicted = found[pair], predictor.predict(plan)
            rows[plan] = Row(
                device_bytes=result.reserved_bytes + _OUTSIDE_BYTES,
                tokens_per_second=predicted.tokens_per_second.expected * hidden.speed(plan),
                allocated_bytes=result.allocated_bytes,
                reserved_bytes=result.reserved_bytes,
            )
        model = PublishedModel(workload, Space(), (), HEADROOM, THROUGHPUT, published=tuple(rows))
        ruled_out = {dropped.plan for dropped in rank(workload, model, model.plans, HEADROOM).dropped}
        return PublishedTable(workload, rows, tuple(plan for plan in rows if plan not in ruled_out))


def _shortened(plan: Plan) -> Plan:
    return plan.with_batch(plan.micro_batch, min(plan.accumulation, _MOST_ACCUMULATION))


GRIDS = (
    Grid("gpt2-medium", 1, "a10-24gb"),
    Grid("gpt2-medium", 1, "a100-40gb"),
    Grid("llama-1.1b", 1, "a100-40gb"),
    Grid("llama-1.1b", 1, "h100-80gb"),
    Grid("llama-1.1b", 8, "a10-24gb"),
    Grid("llama-1.1b", 8, "a100-40gb"),
    Grid("llama-1.1b", 8, "h100-80gb"),
)


def main() -> int:
    """Emulate what is missing; exit code 1 if a plan could not run."""
    pairs = dict.fromkeys(pair for grid in GRIDS for pair in grid.pairs().values())
    run_missing(pairs, FILE, 2)
    found = read(FILE)
    failed = [pair for pair in pairs if pair not in found or found[pair].problem]
    for pair in failed:
        print(f"search_emulated: {pair}: {found[pair].problem if pair in found else 'not run'}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
