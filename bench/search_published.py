"""Tables of published GPU measurements of several plans of one job, for `search.py`.

Each job of bench/data/measured_sweeps.csv is one table, whose plans are the published ones; no others can be chosen.
MemTune's predictions had no part in it.
"""

from __future__ import annotations

import csv
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from search_tables import HEADROOM, Row, Table

from memtune.gpus.gpu import find
from memtune.memory.workload import Workload
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.planning.knowledge import Lesson, PlanKnowledge
from memtune.planning.space import THROUGHPUT, Space, rank
from memtune.plans.plan import Plan

DATA = Path(__file__).parent / "data" / "measured_sweeps.csv"


@dataclass(frozen=True)
class PublishedModel(PlanKnowledge):
    """MemTune's knowledge if the job allows only some plans."""

    published: tuple[Plan, ...] = ()

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """Every published plan."""
        return self.published


class PublishedTable(Table):
    """The truth of the published plans of one job."""

    def knowledge(self, lessons: tuple[Lesson, ...]) -> PlanKnowledge:
        """MemTune's knowledge of the plans after these lessons."""
        return PublishedModel(
            self.workload, _space(self.rows), lessons, HEADROOM, THROUGHPUT, published=tuple(self.rows)
        )


class Published(NamedTuple):
    """A job with published plans, and their source."""

    job: str
    source: str
    table: PublishedTable


def published_tables(path: Path = DATA) -> list[Published]:
    """Every job with at least one plan that keeps its headroom."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = [_published(job, list(lines)) for job, lines in groupby(rows, key=lambda cells: cells["job"])]
    return [each for each in found if any(each.table.fits(plan) for plan in each.table.rows)]


def _published(job: str, lines: list[dict[str, str]]) -> Published:
    workload = _workload(lines[0])
    rows = {Plan.parse(cells["plan"]): _row(cells) for cells in lines}
    model = PublishedModel(workload, _space(rows), (), HEADROOM, THROUGHPUT, published=tuple(rows))
    ruled_out = {dropped.plan for dropped in rank(workload, model, model.plans, HEADROOM).dropped}
    possible = tuple(plan for plan in rows if plan not in ruled_out)
    return Published(job, lines[0]["source"].split()[0], PublishedTable(workload, rows, possible))


def _space(plans: Collection[Plan]) -> Space:
    """The choices of these plans: what a space does not have, its search takes for closed by an edit."""
    return Space(
        precisions=tuple({each.precision for each in plans}),
        shardings=tuple({each.sharding for each in plans}),
        checkpointings=tuple({each.checkpointing for each in plans}),
        offloads=tuple({each.offload for each in plans}),
        optimizers=tuple({each.optimizer for each in plans}),
        attentions=tuple({each.attention for each in plans}),
        fused_losses=tuple({each.fused_loss for each in plans}),
        expandable_segments=tuple({each.expandable_segments for each in plans}),
    )


def _row(cells: dict[str, str]) -> Row:
    """A run without a speed ran out of memory; by how much was not published."""
    if not cells["tokens_per_second"]:
        return Row(died=True)
    return Row(
        device_bytes=float(cells["device_bytes"]),
        tokens_per_second=float(cells["tokens_per_second"]),
        allocated_bytes=float(cells["allocated_bytes"] or 0),
    )


def _workload(cells: dict[str, str]) -> Workload:
    hidden, heads, gpus = int(cells["hidden"]), int(cells["heads"]), int(cells["gpus"])
    architecture = Architecture(
        name=cells["model"],
        kind=Kind.DECODER,
        hidden_size=hidden,
        layers=int(cells["layers"]),
        heads=heads,
        kv_heads=int(cells["kv_heads"]),
        head_dim=hidden // heads,
        ffn_size=int(cells["ffn"]),
        vocab_size=int(cells["vocab"]),
        rms_norm=True,
    )
    return Workload(
        model=architecture,
        gpu=find(cells["gpu"]),
        global_batch=int(cells["samples"]) * gpus,
        sequence_length=int(cells["sequence"]),
        gpus_per_node=gpus,
        adapter=_adapter(cells),
        without_reducer=gpus == 1,
        # Both sources hold bf16 between layers of a quantized base, as the slopes of allocated bytes show.
        casts_frozen=True,
    )


def _adapter(cells: dict[str, str]) -> Adapter | None:
    if not cells["lora_rank"]:
        return None
    targets = tuple(cells["lora_targets"].split())
    return Adapter(int(cells["lora_rank"]), targets, cells["base_quant"], float(cells["lora_dropout"]))
