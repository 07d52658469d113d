"""Accuracy of the predicted throughput on published measurements.

    PYTHONPATH=core python bench/throughput.py [FILE.csv]

Prints published and predicted tokens per second, a table by source and GPU, and a machine-readable line: percentages,
where ``bias`` is the median of predicted over published less one, ``inside`` the share of rows within the interval. At
last, the same of the runs in bench/data/measured_sweeps.csv, on which no constant was chosen.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from search_published import published_tables

from memtune.gpus.gpu import find
from memtune.memory.prediction import Interval
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.plans.plan import Plan

DATA = Path(__file__).parent / "data" / "measured_throughput.csv"


class Row(NamedTuple):
    """One published throughput, ready to be predicted."""

    id: str
    source: str
    workload: Workload
    plan: Plan
    published: float

    @property
    def model(self) -> Architecture:
        """The model, of which no row has a trace alone."""
        assert isinstance(self.workload.model, Architecture)
        return self.workload.model


class Scored(NamedTuple):
    """A row and its prediction."""

    row: Row
    predicted: Interval

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted.expected / self.row.published

    @property
    def is_inside(self) -> bool:
        """Whether the published number is within the predicted interval."""
        return self.predicted.lower <= self.row.published <= self.predicted.upper


def read_rows(path: Path) -> list[Row]:
    """Every row of a file."""
    with path.open(newline="", encoding="utf-8") as file:
        return [read_row(cells) for cells in csv.DictReader(file)]


def read_row(cells: dict[str, str]) -> Row:
    """One row of the table."""
    plan = Plan.parse(cells["plan"])
    nodes, gpus = int(cells["nodes"]), int(cells["gpus_per_node"])
    workload = Workload(
        model=_architecture(cells),
        gpu=find(cells["gpu"]),
        global_batch=plan.global_batch(nodes * gpus),
        sequence_length=int(cells["sequence"]),
        nodes=nodes,
        gpus_per_node=gpus,
        adapter=_adapter(cells),
        compiled=cells["compiled"] == "yes",
    )
    return Row(cells["id"], cells["source"].split()[0], workload, plan, float(cells["tokens_per_second"]))


def _architecture(cells: dict[str, str]) -> Architecture:
    hidden, heads, gated = int(cells["hidden"]), int(cells["heads"]), cells["gated"] == "yes"
    return Architecture(
        name=cells["model"],
        kind=Kind.DECODER,
        hidden_size=hidden,
        layers=int(cells["layers"]),
        heads=heads,
        kv_heads=int(cells["kv_heads"]),
        head_dim=hidden // heads,
        ffn_size=int(cells["ffn"]),
        vocab_size=int(cells["vocab"]),
        gated_ffn=gated,
        rms_norm=gated,
        qkv_bias=not gated,
        attention_output_bias=not gated,
        ffn_bias=not gated,
        tied_embeddings=cells["tied"] == "yes",
        position_count=int(cells["positions"]),
    )


def _adapter(cells: dict[str, str]) -> Adapter | None:
    if not cells["lora_rank"]:
        return None
    return Adapter(int(cells["lora_rank"]), tuple(cells["lora_targets"].split()), cells["base_quant"])


def score(rows: Iterable[Row]) -> list[Scored]:
    """Predict every row."""
    return [Scored(row, Predictor(row.workload).predict(row.plan).tokens_per_second) for row in rows]


def score_sweeps() -> dict[str, list[Scored]]:
    """Predict every sweep's runs, by source, GPU and what is trained."""
    scored: dict[str, list[Scored]] = {}
    for job, source, table in published_tables():
        adapter = table.workload.adapter
        trained = f"adapter, {adapter.base_quantization}" if adapter else "whole model"
        rows = [
            Row(job, source, table.workload, plan, measured.tokens_per_second)
            for plan, measured in table.rows.items()
            if measured.tokens_per_second
        ]
        name = f"{source.rpartition('/')[2]} {table.workload.gpu.name} {trained}"
        scored.setdefault(name, []).extend(score(rows))
    return scored


def summary(scored: list[Scored]) -> str:
    """The figures of some rows in one line."""
    errors = [abs(one.ratio - 1) for one in scored]
    bias = statistics.median(one.ratio for one in scored) - 1
    inside = sum(one.is_inside for one in scored) / len(scored)
    width = statistics.median(one.predicted.width for one in scored)
    return (
        f"n={len(scored)} bias={100 * bias:.2f} median_ape={100 * statistics.median(errors):.2f} "
        f"max_ape={100 * max(errors):.2f} inside={100 * inside:.2f} width={width:.3f}"
    )


def main() -> None:
    """Print every row, the figures by source and by GPU, and those of all."""
    scored = score(read_rows(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA))
    print(f"{'row':<12}{'model':<14}{'gpus':>10} {'plan':<24}{'published':>12}{'predicted':>12}{'ratio':>7}")
    for one in scored:
        print(_line(one))
    by: tuple[Callable[[Scored], str], ...] = (lambda one: one.row.source, lambda one: one.row.workload.gpu.name)
    for name in by:
        print()
        for group in sorted({name(one) for one in scored}):
            print(f"{group:<28}{summary([one for one in scored if name(one) == group])}")
    print(f"\n{summary(scored)}")
    sweeps = score_sweeps()
    print()
    for group, some in sorted(sweeps.items()):
        print(f"{group:<48}{summary(some)}")
    print(f"\nsweeps: {summary([one for some in sweeps.values() for one in some])}")


def _line(one: Scored) -> str:
    row, workload = one.row, one.row.workload
    outside = "" if one.is_inside else "  outside"
    return (
        f"{row.id:<12}{workload.model.name:<14}{workload.world:>4} {workload.gpu.name[:5]:<5} "
        f"{row.plan!s:<24}{row.published:>12,.0f}{one.predicted.expected:>12,.0f}{one.ratio:>7.2f}{outside}"
    )


if __name__ == "__main__":
    main()
