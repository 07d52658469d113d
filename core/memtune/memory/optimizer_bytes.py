"""Bytes that optimizers keep per parameter, and what their steps take. A job may name its script's own optimizer.

Sources: torch/optim (adamw.py, sgd.py, adafactor.py, _muon.py; foreach AdamW takes the roots of all second moments at
once); bitsandbytes functional.py (quantize_blockwise: an fp32 absmax for 256 elements) and optim/optimizer.py (paged
states are in managed memory); torchao optim/subclass_8bit.py, subclass_fp8.py and subclass_4bit.py (an fp32 scale for
256, 256 and 128 elements).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from memtune.plans.knobs import Optimizer

_FP32 = 4
# Bytes per element of one moment below four bytes, with its scales.
_MOMENT_BYTES = {"8bit": 1 + 4 / 256, "fp8": 1 + 4 / 256, "4bit": 0.5 + 4 / 128}
_MOMENTS = {
    "adam": 2, "adamw": 2, "nadam": 2, "radam": 2, "adamax": 2, "adadelta": 2, "lamb": 2, "sophia": 2, "amsgrad": 3,
    "adan": 3, "ademamix": 3, "prodigy": 4, "adagrad": 1, "rmsprop": 1, "lars": 1, "lion": 1, "muon": 1, "sgd": 1,
}  # fmt: skip
# Rows and columns of each matrix instead of a moment: 2 numbers per 1,000 elements of a 1,000 by 1,000 matrix.
_ADAFACTOR_BYTES = 0.02
# Newton-Schulz has a matrix, its square and their product in bf16, beside the update.
_MUON_PRODUCT_BYTES = 3 * 2.0
# Parts of a name that tell the optimizer's origin or implementation, but not its states.
_SILENT = re.compile(r"torch|bnb|bitsandbytes|hf|apex|xla|npu|fused|foreach|schedule_?free|ao|32_?bit")


class OptimizerBytes(NamedTuple):
    """Bytes per parameter: ``states``, and ``foreach`` temporaries of all parameters at once without a fused kernel.

    Parameters outside the repeated blocks have ``outside`` more; if so, a separate AdamW steps them, and ``foreach`` is
    its. A step that goes weight by weight has ``alone`` for each element of the current one, of which ``products`` are
    in bf16 under any states. Paged states are not in the allocator.
    """

    states: float
    outside: float = 0.0
    foreach: float = 0.0
    alone: float = 0.0
    products: float = 0.0

    def of_bytes(self, width: float) -> OptimizerBytes:
        """The same with moments of ``width`` bytes in place of four."""
        narrow = self._replace(alone=self.alone - self.products)
        states, outside, foreach, alone, _ = (each * width / _FP32 for each in narrow)
        return OptimizerBytes(states, outside, foreach, alone + self.products, self.products)


def optimizer_bytes(name: str) -> OptimizerBytes | None:
    """The memory of an optimizer by its name in torch, transformers, bitsandbytes or torchao; None if unknown."""
    word = re.sub(r"[^a-z0-9]+", "_", name.lower())
    is_paged = "paged" in word
    few_bits = next((bits for bits in _MOMENT_BYTES if re.search(bits.replace("bit", "_?bit"), word)), None)
    has_none = "without_momentum" in word  # torch's SGD as it is if nothing is said (sgd.py, momentum=0)
    word = re.sub(r"paged|fp8|[48]_?bit|_?without_momentum", "", word)
    base = _SILENT.sub("", word).replace("_", "")
    if base == "adafactor":
        return OptimizerBytes(_ADAFACTOR_BYTES, alone=_FP32)
    moments = _MOMENTS.get(base)
    if moments is None:
        return None
    if is_paged or (base == "sgd" and has_none):
        return OptimizerBytes(0.0)
    if few_bits:
        return OptimizerBytes(moments * _MOMENT_BYTES[few_bits])
    if base == "muon":
        products = _MUON_PRODUCT_BYTES
        return OptimizerBytes(_FP32, outside=_FP32, foreach=_FP32, alone=_FP32 + products, products=products)
    if base == "lion":
        return OptimizerBytes(_FP32, alone=_FP32)
    return OptimizerBytes(_FP32 * moments, foreach=0.0 if base == "sgd" else _FP32)


def _known(optimizer: Optimizer) -> OptimizerBytes:
    found = optimizer_bytes(optimizer.value)
    assert found
    return found


# The optimizers of a plan, with fp32 moments.
BYTES: Mapping[Optimizer, OptimizerBytes] = {each: _known(each) for each in Optimizer}
