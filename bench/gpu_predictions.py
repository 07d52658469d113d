"""Prints what is predicted of the pairs of the GPU benchmark by formulas and by traces, as a line of JSON.

python bench/gpu_predictions.py GPU [MODEL]...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from typing import Any

from gpu_pairs import MODELS, PAIRS, SMALLEST
from gpu_score import ways
from gpu_trace import traced

from memtune.gpus.gpu import chip_of, find


def predictions(name: str, models: Collection[str]) -> dict[str, Any]:
    """The GPU's ``product``, and the ``pairs`` of these models, or of all; or an ``error``."""
    try:
        gpu = find(name)
    except ValueError as error:
        return {"error": str(error)}
    paired = [model for model in MODELS if model != SMALLEST]
    if unknown := set(models) - set(paired):
        return {"error": f"no pair has the model {' or '.join(sorted(unknown))}; use {', '.join(paired)}"}
    pairs = [pair for pair in PAIRS if not models or pair.model in models]
    both = ways(gpu, traced(pairs))
    found = {str(pair): {way: predict(pair).device for way, predict in both.items()} for pair in pairs}
    return {"product": chip_of(gpu.name).product, "pairs": found}


if __name__ == "__main__":
    print(json.dumps(predictions(sys.argv[1], sys.argv[2:])))
