"""The least memory of plans on an emulated GPU that shrinks until they run out, beside peaks and predictions.

    python bench/emulated_needed.py > bench/results/emulated-needed.md

Pairs that ``--file`` has are not run again. Needs `make env-emulated`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from accuracy import quantile
from emulated_pair_list import Pair, prediction
from emulated_pairs import run

from memtune.memory.prediction import Interval
from memtune.units import GIB

_BENCH = Path(__file__).parent
_FILE = _BENCH / "results" / "emulated-needed.jsonl"
_SCRIPT = _BENCH / "emulated_needed_run.py"
PAIRS = tuple(
    Pair(model, plan, int(ranks))
    for model, plans in {
        "qwen2-0.5b": "bf16-z2-full-mb4x1:8 bf16-ddp-none-mb4x1:1 bf16-z3-full-mb4x1:8 bf16-fsdp-full-mb4x1:8 "
        "bf16-z3-full-mb4x1-exp:8 bf16-z2-full-mb4x1-exp:8 bf16-ddp-full-mb8x2-exp:1",
        "llama-1.1b": "bf16-fsdp-none-mb4x1:8 bf16-z3-none-mb4x1:8 bf16-fsdp-full-mb4x2-exp:2 bf16-z1-none-mb2x1:8",
        "llama-1.1b-lora": "bf16-ddp-full-mb8x1:1",
        "gpt2-medium": "bf16-z2-none-mb8x2:8 bf16-ddp-none-mb8x1:1",
    }.items()
    for pair in plans.split()
    for plan, ranks in [pair.split(":")]
)

HEAD = (
    "# The least memory in which a plan runs",
    "",
    "Made by `python bench/emulated_needed.py`: rank 0 on an emulated GPU, in three steps. *Needed* is the least",
    "memory for torch's allocator under which the run completes, found by bisection to 1% of the peak; *flushes*, how",
    "often the allocator then emptied its cache. Shares are of the allocated bytes.",
    "",
    "| model | plan | rank 0 of | allocated GiB | reserved | needed | flushes | predicted GiB | off | above upper |",
    "|---|---|--:|--:|--:|--:|--:|--:|--:|---|",
)


class Needed(NamedTuple):
    """A pair's peaks without a limit, and the least limit under which it completed, with as many emptied caches."""

    pair: Pair
    allocated: int
    reserved: int
    needed: int
    flushes: int


def read(file: Path) -> list[Needed]:
    """The pairs that were measured."""
    names = ("allocatedBytes", "reservedBytes", "neededBytes", "flushes")
    told = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    return [
        Needed(Pair(each["model"], each["plan"], each["ranks"]), *(each[name] for name in names))
        for each in told
        if "problem" not in each
    ]


def predicted(pair: Pair) -> Interval:
    """The needed memory that is predicted for a pair within torch's allocator."""
    found = prediction(pair)
    outside = found.device.expected - found.reserved.expected
    return Interval(*(bound - outside for bound in found.needed))


def page(found: Iterable[Needed]) -> Iterator[str]:
    """The page."""
    yield from HEAD
    errors, above, count, kept = [], 0, 0, []
    for each in found:
        bounds = predicted(each.pair)
        error, is_above = bounds.expected / each.needed - 1, each.needed > bounds.upper
        errors.append(abs(error))
        above, count = above + is_above, count + 1
        if each.reserved > each.allocated:
            kept.append((each.needed - each.allocated) / (each.reserved - each.allocated))
        yield (
            f"| {each.pair.model} | {each.pair.plan} | {each.pair.ranks} | {each.allocated / GIB:.2f} "
            f"| +{each.reserved / each.allocated - 1:.1%} | +{each.needed / each.allocated - 1:.1%} | {each.flushes} "
            f"| {bounds.expected / GIB:.2f} ({bounds.lower / GIB:.2f}–{bounds.upper / GIB:.2f}) | {error:+.1%} "
            f"| {'yes' if is_above else ''} |"
        )
    yield ""
    yield (
        f"n={count} median_ape={100 * statistics.median(errors):.2f} p90_ape={100 * quantile(errors, 0.9):.2f} "
        f"above_upper={above} kept_of_cache_median={100 * statistics.median(kept):.0f}"
    )


def main() -> int:
    """Run missing pairs and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=_FILE, help="where results are kept, to resume from")
    options = parser.parse_args()
    known = {each.pair for each in read(options.file)}
    for pair in PAIRS:
        if pair not in known:
            run(pair.model, [pair], options.file, _SCRIPT)
    found = read(options.file)
    print("\n".join(page(found)))
    return 0 if {each.pair for each in found} >= set(PAIRS) else 1


if __name__ == "__main__":
    sys.exit(main())
