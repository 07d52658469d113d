"""Memory that the allocator keeps beyond the live tensors, by class of plans: shares fitted on emulated runs.

    python bench/packing.py > bench/results/packing.md
    python bench/packing.py --write    also writes the shares to core/memtune/memory/formulas/packing.py

The runs are those of bench/emulated_pairs.py (rank 0 on an emulated H100), of bench/emulated_alone.py, of
bench/search_emulated.py (emulated-grid.jsonl) and of bench/gpu_measure.py (packing-runs.jsonl), each in three training
steps. Runs of one model that have the same peaks count once. Where lengths vary, they are those of
bench/emulated_lengths.py, in 100 steps, of which half have uniform and half log-normal lengths: the shares are those of
equal lengths, and only that of the logits is fitted.

packing.py adds to the allocated bytes of the formulas: ``share`` of that, ``unfit`` of what other phases have more,
``flat`` of what the step makes where DeepSpeed flattens gradients, and elsewhere, on the default allocator, ``anew`` of
what the loss requests anew. The shares, in percent, are those that miss the reserved bytes least: the sum of absolute
errors, where every model of a class weighs the same. The half-width is `BOUND` times the root mean square of what is
kept less what shares say that were fitted without the run's model, relative to what these say. No published peak is
used.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import emulated_alone
import emulated_lengths
import emulated_pair_list
import emulated_pairs
import gpu_pairs
from accuracy import quantile

from memtune.gpus.gpu import find
from memtune.memory.constants import DEFAULT_CONSTANTS
from memtune.memory.formulas.logits_and_buffers import loss_blocks
from memtune.memory.formulas.packing import PACKINGS, Packing, packing_class
from memtune.memory.formulas.phases import ledger
from memtune.memory.formulas.recipe import lower
from memtune.memory.formulas.terms import DRIVER_OVERHEAD, EVALUATION, INIT, PHASES, SAVE
from memtune.memory.prediction import BOUND
from memtune.memory.predictor import Predictor
from memtune.plans.plan import Plan

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PACKING = ROOT / "core" / "memtune" / "memory" / "formulas" / "packing.py"
_RUNS = RESULTS / "packing-runs.jsonl"
# No allocator packs tighter than whole pages.
_LEAST = 0.02
_VARYING = "varying, "
_EXPANDABLE = "expandable, "
# The largest share of the logits that the search considers, in percent.
_MOST_OF_LOGITS = 1000
# Parameters of the search for shares.
_STEPS = (0.2, 0.05, 0.01)


class Run(NamedTuple):
    """An emulated run: what formulas say of it, and its bytes on the emulated GPU."""

    model: str
    plan: str
    ranks: int
    kind: str
    predicted: float
    excess: float
    logits: float
    flat: float
    anew: float
    allocated_bytes: int
    reserved_bytes: int

    @property
    def kept(self) -> float:
        """Bytes that the allocator kept, as a share of those that formulas say are allocated."""
        return self.reserved_bytes / self.predicted - 1

    def said(self, packing: Packing) -> float:
        """The same as shares say it."""
        parts = packing.unfit * self.excess + packing.loss * self.logits + packing.flat * self.flat
        return packing.share + (parts + packing.anew * self.anew) / self.predicted

    def miss(self, packing: Packing) -> float:
        """Relative error of the reserved bytes."""
        return (1 + self.said(packing)) * self.predicted / self.reserved_bytes - 1


def _run(predictor: Predictor, model: str, plan: Plan, ranks: int, allocated_bytes: int, reserved_bytes: int) -> Run:
    terms = [term for term in predictor.explain(plan) if term.name not in DRIVER_OVERHEAD]
    training = [phase for phase in range(len(PHASES)) if phase not in (INIT, EVALUATION, SAVE)]
    sizes = {
        name: [sum(term.bytes for term in terms if term.name == name and phase in term.phases) for phase in training]
        for name in {term.name for term in terms}
    }
    peak = max(sum(term.bytes for term in terms if phase in term.phases) for phase in range(len(PHASES)))
    highest = sum(max(each) for each in sizes.values())
    recipe = lower(predictor.workload, plan)
    logits, flat = (max(sizes.get(name, [0.0])) for name in ("logits", "step transients"))
    kind, blocks = packing_class(predictor.shape, recipe), loss_blocks(predictor.shape, recipe)
    # A class without a share of its own has no `Cut` otherwise.
    counting = PACKINGS[kind]._replace(anew=1.0)
    cut = ledger(terms, recipe, DEFAULT_CONSTANTS, predictor.belief, None, counting, counting, blocks).cut
    assert cut
    anew = max(cut.peak(plan.micro_batch) - peak, 0.0)
    parts = highest - peak, logits, flat, anew
    return Run(model, str(plan), ranks, kind, peak, *parts, allocated_bytes, reserved_bytes)


def runs() -> list[Run]:
    """Every emulated run of a model that formulas describe."""
    found = {}
    for name in ("emulated-grid.jsonl", "emulated-pairs.jsonl"):
        for pair, result in emulated_pairs.read(RESULTS / name).items():
            if result.problem or not emulated_pair_list.MODELS[pair.model].config:
                continue
            plan = Plan.parse(pair.plan)
            predictor = emulated_pair_list.predictor(pair.model, plan, pair.ranks)
            sizes = result.allocated_bytes, result.reserved_bytes
            found[pair.model, sizes] = _run(predictor, pair.model, plan, pair.ranks, *sizes)
    for pair, result in emulated_pairs.read(emulated_alone.FILE).items():
        predictor, sizes = emulated_alone.predictor_of(pair), (result.allocated_bytes, result.reserved_bytes)
        found[f"{pair.model}, alone", sizes] = _run(predictor, pair.model, Plan.parse(pair.plan), 1, *sizes)
    gpu = find("h200-141gb")
    assert gpu
    for line in _RUNS.read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        measured = gpu_pairs.Pair(told["model"], told["plan"], told["ranks"])
        plan, predictor = Plan.parse(measured.plan), Predictor(gpu_pairs.workload(measured, gpu))
        sizes = told["allocatedBytes"], told["reservedBytes"]
        found[measured.model, sizes] = _run(predictor, measured.model, plan, measured.world, *sizes)
    for each in emulated_lengths.read():
        if each.varies and not each.needed_bytes:
            plan, (model, _, ranks) = Plan.parse(each.case.pair.plan), each.case.pair
            sizes = each.allocated_bytes, each.reserved_bytes
            predictor = emulated_lengths.predictor_of(each.case, plan)
            found[model, sizes] = _run(predictor, model, plan, ranks, *sizes)
    return list(found.values())


def fitted(rows: Sequence[Run]) -> dict[str, Packing]:
    """The shares of each class, with their half-widths."""
    found: dict[str, Packing] = {}
    for kind in sorted(PACKINGS, key=lambda each: each.startswith(_VARYING)):
        own = of_kind(rows, kind)
        base = found.get(kind.removeprefix(_VARYING)) if kind.startswith(_VARYING) else None
        shares = fit_varying(own, base) if base else fit(own)
        if plain := found.get(kind.removeprefix(_EXPANDABLE)):
            # Expandable segments map pages as they need them, so they pack tighter than the others.
            shares = shares._replace(share=min(shares.share, max(plain.share - _STEPS[-1], _LEAST)))
        found[kind] = shares._replace(doubt=doubt(left_out(own, base)))
    return {kind: found[kind] for kind in PACKINGS}


def of_kind(rows: Sequence[Run], kind: str) -> list[Run]:
    """The runs of a class."""
    return [row for row in rows if row.kind == kind]


def fit(rows: Sequence[Run]) -> Packing:
    """The shares that miss the runs of a class of equal lengths least, without a half-width."""
    kind, counts = rows[0].kind, Counter(row.model for row in rows)
    flattens, has_third = kind == "flattened", not kind.startswith("expandable")
    # With separate gradients or an adapter, the bytes requested again include all that other phases leave.
    has_unfit = kind not in ("alone", "adapter")
    # Relative to the reserved bytes: those that formulas say, what each share adds to them, and the run's weight.
    told = [
        (row.predicted / row.reserved_bytes, row.excess / row.reserved_bytes,
         (row.flat if flattens else row.anew) / row.reserved_bytes, 1 / counts[row.model]) for row in rows
    ]  # fmt: skip

    def missed(shares: tuple[float, float, float]) -> float:
        share, unfit, third = shares
        return sum(abs((1 + share) * live + unfit * excess + third * part - 1) * weight
                   for live, excess, part, weight in told)  # fmt: skip

    def nearest(best: tuple[float, float, float]) -> tuple[float, float, float]:
        """The shares at which the search from some others ends."""
        for step in _STEPS:
            moves = [(0.0, step, -step) if is_sought else (0.0,) for is_sought in (True, has_unfit, has_third)]
            while True:
                around = (
                    [max(size + by, least) for size, by, least in zip(best, move, (_LEAST, 0.0, 0.0), strict=True)]
                    for move in product(*moves)
                )
                found = min(((share, unfit, third) for share, unfit, third in around), key=missed)
                if missed(found) >= missed(best):
                    break
                best = found
        return best

    starts = product((_LEAST, 0.1), (0.0, 0.5) if has_unfit else (0.0,), (0.0, 0.5, 1.0) if has_third else (0.0,))
    best = min(map(nearest, starts), key=missed)
    share, unfit, third = (round(each, 2) for each in best)
    return Packing(share, unfit, 0.0, third if flattens else 0.0, third if has_third and not flattens else 0.0, 0.0)


def fit_varying(rows: Sequence[Run], base: Packing) -> Packing:
    """The share of the logits that misses runs of varying lengths least, beside the shares of equal lengths.

    Least are the squares of logarithms: the lengths of a job may be distributed in one way or the other, and the share
    is in the middle between these.
    """
    counts = Counter(row.model for row in rows)

    def missed(loss: float) -> float:
        return sum(math.log1p(row.miss(base._replace(loss=loss))) ** 2 / counts[row.model] for row in rows)

    steps = range(round(100 * base.loss), _MOST_OF_LOGITS)
    return base._replace(loss=min((step / 100 for step in steps), key=missed), doubt=0.0)


def left_out(rows: Sequence[Run], base: Packing | None = None) -> list[tuple[Run, Packing]]:
    """Each run with shares that were fitted without its model; with all, if a class has one model."""
    found = []
    for model in dict.fromkeys(row.model for row in rows):
        others = [row for row in rows if row.model != model] or list(rows)
        packing = fit_varying(others, base) if base else fit(others)
        found += [(row, packing) for row in rows if row.model == model]
    return found


def doubt(held: Sequence[tuple[Run, Packing]]) -> float:
    """The relative half-width of what is kept."""
    missed = sum((row.kept - row.said(packing)) ** 2 for row, packing in held)
    return BOUND * math.sqrt(missed / sum(row.said(packing) ** 2 for row, packing in held))


def _line(kind: str, rows: Sequence[Run], packing: Packing, held: Sequence[tuple[Run, Packing]]) -> str:
    own, others = [abs(row.miss(packing)) for row in rows], [abs(row.miss(each)) for row, each in held]
    return (
        f"| {kind} | {len({row.model for row in rows})} | {len(rows)} | {packing.share:.0%} | {packing.unfit:.0%} "
        f"| {packing.loss:.0%} | {packing.flat:.0%} | {packing.anew:.0%} | {packing.doubt:.0%} "
        f"| {statistics.median(own):.1%} | {quantile(own, 0.9):.1%} "
        f"| {statistics.median(others):.1%} | {quantile(others, 0.9):.1%} |"
    )


def page(
    rows: Sequence[Run], found: Mapping[str, Packing], held: Mapping[str, list[tuple[Run, Packing]]]
) -> Iterator[str]:
    """The page."""
    yield "# What emulated runs allocate and reserve"
    yield ""
    yield "Made by `python bench/packing.py`, whose first lines have the method, from runs on emulated GPUs: the shares"
    yield "of `core/memtune/memory/formulas/packing.py`, and how far they miss reserved bytes, by themselves and fitted"
    yield "without the model of the run (*held out*)."
    yield ""
    yield (
        "| class | models | runs | of live | of the excess | of logits | of the step | anew | half-width | median "
        "| p90 | held out | p90 |"
    )
    yield "|---|" + "--:|" * 12
    for kind, packing in found.items():
        yield _line(kind, of_kind(rows, kind), packing, held[kind])
    own = [abs(row.miss(found[row.kind])) for row in rows]
    others = [abs(row.miss(each)) for several in held.values() for row, each in several]
    yield ""
    yield (
        f"runs={len(rows)} median_ape={100 * statistics.median(own):.2f} p90_ape={100 * quantile(own, 0.9):.2f} "
        f"held_out_median={100 * statistics.median(others):.2f} held_out_p90={100 * quantile(others, 0.9):.2f}"
    )
    yield ""
    yield "| model | plan | rank 0 of | class | allocated GiB | reserved GiB | kept | by the shares |"
    yield "|---|---|--:|---|--:|--:|--:|--:|"
    for row in rows:
        sizes = f"{row.allocated_bytes / 2**30:.2f} | {row.reserved_bytes / 2**30:.2f}"
        kept = f"{row.kept:.1%} | {row.said(found[row.kind]):.1%}"
        yield f"| {row.model} | {row.plan} | {row.ranks} | {row.kind} | {sizes} | {kept} |"


def write(found: Mapping[str, Packing], path: Path = PACKING) -> None:
    """Replace the table in the formulas."""
    lines = (
        f'    "{kind}": Packing({", ".join(f"{each:.2f}" for each in packing)}),\n' for kind, packing in found.items()
    )
    table = "".join(lines)
    text = path.read_text(encoding="utf-8")
    pattern = r"(PACKINGS: Mapping\[str, Packing\] = \{\n).*?(\n?\})"
    path.write_text(re.sub(pattern, lambda m: m[1] + table + "}", text, count=1, flags=re.DOTALL), encoding="utf-8")


def main(arguments: Iterable[str] | None = None) -> int:
    """Print the page, and write the shares if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the shares to the formulas, too")
    options = parser.parse_args(list(arguments) if arguments is not None else None)
    rows = runs()
    found = fitted(rows)
    held = {
        kind: left_out(of_kind(rows, kind), found[kind.removeprefix(_VARYING)] if kind.startswith(_VARYING) else None)
        for kind in found
    }
    print("\n".join(page(rows, found, held)))
    if options.write:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
