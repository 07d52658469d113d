"""Memory that the allocator reserves for an unwrapped model on one emulated GPU: runs for bench/packing.py.

    python bench/emulated_alone.py

Pairs that results/emulated-alone.jsonl has are not run again. Needs `make env-emulated`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import emulated_pairs
from emulated_pair_list import Pair, predictor

from memtune.memory.predictor import Calibration, Predictor
from memtune.plans.plan import Plan

_BENCH = Path(__file__).parent
FILE = _BENCH / "results" / "emulated-alone.jsonl"
_SCRIPT = _BENCH / "emulated_alone_run.py"
_PLANS = {
    "qwen2-0.5b": "full-mb1x1 full-mb2x1 full-mb4x1 full-mb8x1 none-mb1x1 none-mb2x1 none-mb4x1 sel-mb2x1 full-mb2x2 "
                  "none-mb2x2 full-mb2x1-foreach none-mb2x1-foreach full-mb1x1-foreach none-mb1x1-foreach",
    "llama-1.1b": "full-mb1x1 full-mb4x1 full-mb8x1 full-mb16x1 none-mb1x1 none-mb2x1 none-mb4x1 none-mb8x1 full-mb4x2 "
                  "full-mb4x1-foreach none-mb2x1-foreach none-mb8x1-foreach",
    "gpt2-medium": "full-mb4x1 full-mb16x1 none-mb4x1 none-mb8x1 full-mb8x2 full-mb8x1-foreach none-mb8x1-foreach",
    "gemma2-2b": "full-mb1x1 none-mb1x1 full-mb2x1-foreach",
    "mixtral-0.8b": "none-mb1x1 full-mb4x1",
    "qwen3-moe-1b": "full-mb4x1",
    "t5-base": "none-mb8x1 full-mb16x1",
    "bert-large": "none-mb16x1 full-mb32x1",
    "vit-large": "none-mb32x1 full-mb64x1",
}  # fmt: skip
PAIRS = tuple(Pair(model, f"bf16-ddp-{plan}", 1) for model, plans in _PLANS.items() for plan in plans.split())


def predictor_of(pair: Pair) -> Predictor:
    """The predictor of a pair whose model nothing wraps."""
    found = predictor(pair.model, Plan.parse(pair.plan), pair.ranks)
    return Predictor(replace(found.workload, without_reducer=True), Calibration(found.belief, None))


def main() -> int:
    """Run missing pairs; exit code 1 if one could not run."""
    emulated_pairs.run_missing(PAIRS, FILE, processes=1, script=_SCRIPT)
    problems = [each for each in emulated_pairs.read(FILE).values() if each.problem]
    for each in problems:
        print(f"emulated_alone: {each.pair}: {each.problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
