"""Memory that the allocator reserves for batches of varying lengths on the emulated GPU, beside the predictions.

    python bench/emulated_lengths.py > bench/results/emulated-lengths.md

Cases that ``--file`` has are not run again. Needs `make env-emulated`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import emulated_pairs
from accuracy import quantile
from emulated_pair_list import Pair, predictor

from memtune.memory.prediction import Prediction
from memtune.memory.predictor import Calibration, Predictor
from memtune.plans.plan import Plan
from memtune.units import GIB

_BENCH = Path(__file__).parent
FILE = _BENCH / "results" / "emulated-lengths.jsonl"
_SCRIPT = _BENCH / "emulated_lengths_run.py"
FIXED, UNIFORM, LOG_NORMAL = "fixed", "uniform", "lognormal"
_BATCHES = {FIXED: 10, UNIFORM: 100, LOG_NORMAL: 100}
_SHOWN = (3, 10, 30)


class Case(NamedTuple):
    """A pair, on batches of lengths that are drawn by a seed. For some cases the least memory is searched, too."""

    pair: Pair
    lengths: str
    seed: int
    batches: int
    needed: bool = False

    @property
    def words(self) -> str:
        """The case as bench/emulated_lengths_run.py reads it."""
        told = f"{self.pair.plan}:{self.pair.ranks}:{self.lengths}:{self.seed}:{self.batches}"
        return told + (":needed" if self.needed else "")


class Result(NamedTuple):
    """The result of a case: peaks, reserved bytes after some steps, and the least memory if it was searched."""

    case: Case
    allocated_bytes: int
    reserved_bytes: int
    after: dict[int, int]
    needed_bytes: int

    @property
    def varies(self) -> bool:
        """Whether the lengths vary."""
        return self.case.lengths != FIXED

    @property
    def kept(self) -> float:
        """Reserved bytes beyond the allocated, as a share of these."""
        return self.reserved_bytes / self.allocated_bytes - 1


_MANY, _ONE = f"{FIXED} {UNIFORM} {LOG_NORMAL}", f"{FIXED} {UNIFORM}"
_PLANS = (
    ("qwen2-0.5b", "bf16-ddp-none-mb2x1:1 bf16-ddp-full-mb4x1:1 bf16-z2-full-mb4x1:8", _MANY),
    ("qwen2-0.5b", "bf16-fsdp-full-mb4x1:8 bf16-fsdp-none-mb2x1:8", _MANY),
    ("qwen2-0.5b", "bf16-ddp-none-mb2x1-exp:1 bf16-ddp-full-mb4x1-exp:1 bf16-z2-full-mb4x1-exp:8", _ONE),
    ("qwen2-0.5b", "bf16-fsdp-full-mb4x1-exp:8 bf16-fsdp-none-mb2x1-exp:8", _ONE),
    ("llama-1.1b", "bf16-ddp-none-mb2x1:1 bf16-ddp-full-mb8x1:1 bf16-z2-none-mb2x1:8", _MANY),
    ("llama-1.1b", "bf16-z3-full-mb4x1:8 bf16-fsdp-none-mb2x1:8", _ONE),
    ("llama-1.1b-lora", "bf16-ddp-none-mb2x1:1 bf16-ddp-full-mb4x1:1", _MANY),
    ("qwen2-7b-lora", "bf16-ddp-full-mb1x1:1 bf16-ddp-none-mb1x1:1 bf16-fsdp-full-mb2x1:8", _MANY),
)
_NEEDED = ("qwen2-0.5b bf16-ddp-none-mb2x1:1", "qwen2-7b-lora bf16-ddp-full-mb1x1:1")
_NEEDED_BATCHES = 40


def cases() -> list[Case]:
    """Every case."""
    found = []
    for model, plans, kinds in _PLANS:
        for words in plans.split():
            found += [Case(_pair(model, words), lengths, 1, _BATCHES[lengths]) for lengths in kinds.split()]
    sought = (_pair(*each.split()) for each in _NEEDED)
    return [*found, *(Case(pair, UNIFORM, 1, _NEEDED_BATCHES, needed=True) for pair in sought)]


def _pair(model: str, words: str) -> Pair:
    plan, _, ranks = words.partition(":")
    return Pair(model, plan, int(ranks))


_HEAD = (
    "Made by `python bench/emulated_lengths.py`: rank 0 on an emulated H100 without a limit of memory, on 100 batches,",
    "padded to their longest sample. *uniform* samples have from 91 tokens to the cap, *lognormal* ones a median of",
    "an eighth of it, and a spread of 1.0 in the logarithm, and are cut at it; *fixed* ones are as long as the cap,",
    "in 10 batches. One batch of the second half has a sample as long as the cap in any case. *After* are the reserved",
    "GiB after so many batches, *kept* what was reserved beyond the allocated peak, as a share of that.",
)
_NEEDED_TEXT = (
    "As in [emulated-needed.md](emulated-needed.md), found by bisection to 1% of the peak, with 40 uniform batches.",
    "Shares are of the allocated bytes.",
)


def read(file: Path = FILE) -> list[Result]:
    """The cases that were run."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = []
    for told in map(json.loads, lines):
        if "problem" in told:
            continue
        pair, needed = Pair(told["model"], told["plan"], told["ranks"]), told.get("neededBytes", 0)
        case = Case(pair, told["lengths"], told["seed"], told["batches"], bool(needed))
        after = {int(step): size for step, size in told.get("reservedAfter", {}).items()}
        found.append(Result(case, told["allocatedBytes"], told["reservedBytes"], after, needed))
    return found


def predictor_of(case: Case, plan: Plan) -> Predictor:
    """The predictor of a case's pair, which knows whether its lengths vary."""
    found = predictor(case.pair.model, plan, case.pair.ranks)
    workload = replace(found.workload, varying_lengths=case.lengths != FIXED)
    return Predictor(workload, Calibration(found.belief, None))


def prediction(case: Case) -> Prediction:
    """The prediction for a case."""
    plan = Plan.parse(case.pair.plan)
    return predictor_of(case, plan).predict(plan)


def table(found: Iterable[Result]) -> Iterator[str]:
    """Case by case."""
    steps = " | ".join(f"after {step}" for step in _SHOWN)
    head = f"| model | plan | rank 0 of | lengths | seed | allocated GiB | {steps} | reserved GiB | kept "
    yield f"{head}| predicted | off | above |"
    yield "|---|---|--:|---|--:|--:|" + "--:|" * (len(_SHOWN) + 4) + "---|"
    for each in found:
        (model, plan, ranks), lengths, seed, *_ = each.case
        bounds = prediction(each.case).reserved
        shown = " | ".join(f"{each.after[step] / GIB:.1f}" if step in each.after else "" for step in _SHOWN)
        lower, expected, upper = (size / GIB for size in bounds)
        yield (
            f"| {model} | {plan} | {ranks} | {lengths} | {seed} | {each.allocated_bytes / GIB:.2f} | {shown} "
            f"| {each.reserved_bytes / GIB:.2f} | {each.kept:.0%} | {expected:.1f} ({lower:.1f}–{upper:.1f}) "
            f"| {bounds.expected / each.reserved_bytes - 1:+.0%} "
            f"| {'yes' if each.reserved_bytes > bounds.upper else ''} |"
        )


def needs(found: Iterable[Result]) -> Iterator[str]:
    """The least memory of the cases for which it was sought."""
    yield "| model | plan | rank 0 of | allocated GiB | reserved | needed | predicted GiB | off | above upper |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|---|"
    for each in found:
        told = prediction(each.case)
        outside = told.device.expected - told.reserved.expected
        lower, expected, upper = ((size - outside) / GIB for size in told.needed)
        needed, least = each.needed_bytes / GIB, each.needed_bytes / each.allocated_bytes - 1
        model, plan, ranks = each.case.pair
        yield (
            f"| {model} | {plan} | {ranks} | {each.allocated_bytes / GIB:.2f} | +{each.kept:.0%} | +{least:.0%} "
            f"| {expected:.2f} ({lower:.2f}–{upper:.2f}) | {expected / needed - 1:+.0%} "
            f"| {'yes' if needed > upper else ''} |"
        )


def groups(found: Sequence[Result]) -> Iterator[str]:
    """The kept memory, by the allocator and the lengths."""
    yield "| allocator | lengths | cases | kept of the allocated bytes: median | least | most |"
    yield "|---|---|--:|--:|--:|--:|"
    for name, is_expandable in (("default", False), ("expandable segments", True)):
        for lengths in _BATCHES:
            kept = [
                each.kept for each in found
                if each.case.lengths == lengths and Plan.parse(each.case.pair.plan).expandable_segments == is_expandable
            ]  # fmt: skip
            if kept:
                yield (
                    f"| {name} | {lengths} | {len(kept)} | {statistics.median(kept):.0%} | {min(kept):.0%} "
                    f"| {max(kept):.0%} |"
                )


def summary(found: Sequence[Result]) -> str:
    """The machine-readable line, of the cases whose lengths vary."""
    told = [(each, prediction(each.case).reserved) for each in found if each.varies]
    errors = [abs(bounds.expected / each.reserved_bytes - 1) for each, bounds in told]
    above = sum(each.reserved_bytes > bounds.upper for each, bounds in told)
    width = statistics.median(bounds.width for _, bounds in told)
    return (
        f"n={len(told)} median_ape={100 * statistics.median(errors):.2f} p90_ape={100 * quantile(errors, 0.9):.2f} "
        f"above_upper={above} width={width:.3f}"
    )


def page(found: Sequence[Result]) -> Iterator[str]:
    """The page."""
    peaks, sought = [each for each in found if not each.needed_bytes], [each for each in found if each.needed_bytes]
    yield "# Batches of varying lengths"
    yield ""
    yield from _HEAD
    yield ""
    yield from groups(peaks)
    yield ""
    yield summary(peaks)
    if sought:
        yield from ("", "## The least memory in which it runs", "", *_NEEDED_TEXT, "")
        yield from needs(sought)
    yield from ("", "## All", "")
    yield from table(peaks)


def main() -> int:
    """Run missing cases and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE, help="where results are kept, to resume from")
    options = parser.parse_args()
    asked, known = cases(), {each.case for each in read(options.file)}
    for model in dict.fromkeys(case.pair.model for case in asked):
        missing = [case.words for case in asked if case.pair.model == model and case not in known]
        if missing:
            emulated_pairs.emulate(model, missing, options.file, _SCRIPT)
    found = {each.case: each for each in read(options.file)}
    print("\n".join(page([found[case] for case in asked if case in found])))
    return 0 if found.keys() >= set(asked) else 1


if __name__ == "__main__":
    sys.exit(main())
