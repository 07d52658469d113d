"""Accuracy of the throughput that emulated steps tell, on published measurements.

    PYTHONPATH=core:bench python bench/emulated_steps.py [--choose]

Emulates each published run of bench/data/measured_throughput.csv with two layers and with four, extends the operations
of its step to all layers, and prints published and predicted tokens per second beside what formulas predict. What
bench/results/emulated-steps.jsonl has is not run again. Needs `make env-emulated`, and .venv/eight-bit for fp8.

With `--choose`, searches what core/memtune/gpus/operations.py takes products and memory to reach, with each source left
out, and counts the rows within the widths of core/memtune/memory/speed_errors.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from accuracy import quantile
from throughput import DATA, Row, read_rows, score

from memtune.gpus.gpu import Gpu
from memtune.gpus.operations import _MEMORY_SHARE, _PRODUCT_SHARE, Operation, StepTime, step_time
from memtune.memory.speed_errors import _COUNTED, _COUNTED_ERROR
from memtune.plans.knobs import Precision

_BENCH = Path(__file__).parent
_ROOT = _BENCH.parent
_PYTHON = _ROOT / ".venv-emulated" / "bin" / "python"
_FILE = _BENCH / "results" / "emulated-steps.jsonl"
_LIMIT_SECONDS = 3600
_FEW, _MORE = 2, 4
# llm-foundry's own benchmark has Triton's kernel of the first FlashAttention by default (`attn_impl` of its
# submit_benchmarks.py), which takes twice the time of the second (2307.08691, abstract).
_FIRST_FLASH_ATTENTION = 2
# The range of the search: no product is faster than the fastest measured, and no kernel than the memory.
_PRODUCT_SHARES = [percent / 100 for percent in range(70, 101)]
_MEMORY_SHARES = [percent / 100 for percent in range(30, 101, 5)]


class Counted(NamedTuple):
    """A row with the operations of its step."""

    row: Row
    operations: dict[Operation, float]

    def step_on(self, gpu: Gpu) -> tuple[StepTime, float]:
        """The time of its step on a GPU, and predicted over published tokens per second."""
        workload = self.row.workload
        step = step_time(self.operations, gpu, workload.gpus_per_node)
        tokens = self.row.plan.global_batch(workload.world) * workload.sequence_length
        return step, tokens / step.seconds / self.row.published


class Scored(NamedTuple):
    """A row, what its step takes by its operations, and predicted over published: by these, and by formulas."""

    row: Row
    step: StepTime
    ratio: float
    formula: float


def is_emulated(row: Row) -> bool:
    """Whether there is a script for it: none has TransformerEngine, or torchtune's adapters."""
    has_engine = row.plan.precision is Precision.FP8 and "llm-foundry" in row.source
    return not has_engine and row.workload.adapter is None


def read() -> dict[tuple[str, int], Counter[Operation]]:
    """The operations of each row and number of layers that was emulated."""
    found = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines() if _FILE.exists() else []:
        told = json.loads(line)
        counted = Counter[Operation]()
        for *operation, times in told.get("operations", []):
            counted[Operation(*operation)] += times
        if counted:
            found[told["row"], told["layers"]] = counted
    return found


def run(rows: Iterable[Row]) -> None:
    """Emulate what is missing, all rows of a GPU in one tree of processes."""
    found, missing = read(), defaultdict[str, list[str]](list)
    for row in rows:
        wanted = ((row.id, layers) for layers in (_FEW, _MORE))
        missing[row.workload.gpu.name] += [f"{name}:{layers}" for name, layers in wanted if (name, layers) not in found]
    path = [*(_ROOT / each for each in ("core", "runner", "cli", "bench")), _ROOT / ".venv" / "eight-bit"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
    for gpu, words in missing.items():
        command = [
            sys.executable,
            "-m",
            "memtune_cli.main",
            "emulate",
            "--gpu",
            gpu,
            "--ranks",
            "8",
            "--format",
            "json",
        ]
        script = [str(_PYTHON), str(_BENCH / "emulated_steps_run.py"), str(_FILE), *words]
        if words:
            command += ["--time-limit", str(_LIMIT_SECONDS), "--", *script]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=variables)


def extended(row: Row, few: Mapping[Operation, int], more: Mapping[Operation, int]) -> dict[Operation, float]:
    """The operations of all layers, which each add the same; one that grows with the layers is taken away and added."""
    share = (row.model.layers - _FEW) / (_MORE - _FEW)
    slower = _FIRST_FLASH_ATTENTION if "llm-foundry" in row.source else 1
    return {
        each._replace(flops=each.flops * (slower if each.kind == "attention" else 1)): times
        for each in few.keys() | more.keys()
        if (times := (1 - share) * few.get(each, 0) + share * more.get(each, 0))
    }


def counted(rows: Iterable[Row]) -> list[Counted]:
    """The rows of which both numbers of layers were emulated."""
    found = read()
    return [
        Counted(row, extended(row, found[row.id, _FEW], found[row.id, _MORE]))
        for row in rows
        if (row.id, _FEW) in found and (row.id, _MORE) in found
    ]


def scored(rows: Iterable[Row]) -> list[Scored]:
    """Predict every row of which both numbers of layers were emulated."""
    found = counted(rows)
    formulas = score(each.row for each in found)
    return [
        Scored(each.row, *each.step_on(each.row.workload.gpu), one.ratio)
        for each, one in zip(found, formulas, strict=True)
    ]


def errors(rows: Iterable[Counted], products: float, memory: float) -> dict[str, list[float]]:
    """The logarithms of predicted over published by source, if products and memory reach these shares."""
    found = defaultdict[str, list[float]](list)
    for each in rows:
        gpu = each.row.workload.gpu
        faster = replace(
            gpu,
            matmul_share=gpu.matmul_share * products / _PRODUCT_SHARE,
            memory_bytes_per_second=gpu.memory_bytes_per_second * memory / _MEMORY_SHARE,
        )
        found[each.row.source].append(math.log(each.step_on(faster)[1]))
    return found


def missed(by_source: Mapping[str, list[float]], left_out: str = "") -> float:
    """The objective of the search: the mean error of a source's rows, averaged over all sources but one."""
    return statistics.fmean(statistics.fmean(map(abs, some)) for name, some in by_source.items() if name != left_out)


def choose(rows: list[Counted]) -> None:
    """Print which shares miss least, with all sources and without each, and what is within the widths of an error."""
    grid = {shares: errors(rows, *shares) for shares in product(_PRODUCT_SHARES, _MEMORY_SHARES)}
    print(f"{'left out':<31}{'products':>9}{'memory':>8}{'others':>8}  left out")
    ours = _PRODUCT_SHARE, _MEMORY_SHARE
    for left_out in ("", *sorted(grid[ours])):
        misses = {shares: missed(found, left_out) for shares, found in grid.items()}
        best = min(misses, key=misses.__getitem__)
        apart = [abs(math.expm1(off)) for off in grid[best].get(left_out, [])]
        median = f"  n={len(apart)} median={statistics.median(apart):.1%}" if apart else ""
        print(f"{left_out or 'none':<31}{best[0]:>9.2f}{best[1]:>8.2f}{misses[best]:>8.4f}{median}")
    print(f"{'none, as they are':<31}{ours[0]:>9.2f}{ours[1]:>8.2f}{missed(grid[ours]):>8.4f}\n")
    print(within(rows))


def within(rows: Iterable[Counted]) -> str:
    """How many errors are within the widths of core/memtune/memory/speed_errors.py."""
    models = defaultdict[tuple[str, str, str], list[float]](list)
    for each in rows:
        of = each.row.workload
        models[each.row.source, of.model.name, of.gpu.name].append(math.log(each.step_on(of.gpu)[1]))
    commons = [statistics.median(some) for some in models.values()]
    owns = [off - statistics.median(some) for some in models.values() if len(some) > 1 for off in some]
    return "\n".join(
        f"{what} within {width:.2f}: {sum(abs(off) <= width for off in offs)} of {len(offs)}"
        for what, width, offs in (
            ("medians of a model on a GPU", _COUNTED, commons),
            ("rows around that median", _COUNTED_ERROR, owns),
            ("all rows", math.hypot(_COUNTED, _COUNTED_ERROR), [off for some in models.values() for off in some]),
        )
    )


def summary(rows: list[Scored]) -> str:
    """The figures of some rows in one line, of operations and of formulas."""
    words = [f"n={len(rows)}"]
    for name, ratios in (("counted", [each.ratio for each in rows]), ("formulas", [each.formula for each in rows])):
        errors = [abs(ratio - 1) for ratio in ratios]
        words.append(
            f"{name}: bias={statistics.median(ratios) - 1:+.1%} median={statistics.median(errors):.1%} "
            f"p90={quantile(errors, 0.9):.1%}"
        )
    return "  ".join(words)


def main() -> None:
    """Emulate what is missing, print every row and the figures by source and GPU."""
    parser = argparse.ArgumentParser(description="Accuracy of the throughput that emulated steps tell.")
    parser.add_argument("--choose", action="store_true", help="search the shares that products and memory reach")
    rows = [row for row in read_rows(DATA) if is_emulated(row)]
    if parser.parse_args().choose:
        choose(counted(rows))
        return
    run(rows)
    found = scored(rows)
    print(f"{'row':<12}{'model':<13}{'gpus':>10} {'plan':<24}{'counted':>8}{'formulas':>9}  share of the step")
    for one in found:
        workload, total = one.row.workload, one.step.seconds
        shares = ", ".join(
            f"{name} {part / total:.0%}" for name, part in one.step._asdict().items() if part / total > 0.005
        )
        print(
            f"{one.row.id:<12}{workload.model.name:<13}{workload.world:>4} {workload.gpu.name[:5]:<5} "
            f"{one.row.plan!s:<24}{one.ratio:>8.2f}{one.formula:>9.2f}  {shares}"
        )
    print()
    groups = defaultdict[str, list[Scored]](list)
    for one in found:
        groups[one.row.source].append(one)
        groups[f"{one.row.source}, {one.row.workload.gpu.name}"].append(one)
    for name in sorted(groups):
        print(f"{name:<45}{summary(groups[name])}")
    print(f"\n{'all':<45}{summary(found)}")


if __name__ == "__main__":
    main()
