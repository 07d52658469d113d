"""The knobs of a plan and their choices, usually the fastest first and the most memory-saving last.

Also the memory of optimizers, which are more than a plan's choices: a job can name its script's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import NamedTuple

from memtune.words import Word


@total_ordering
class Knob(Word):
    """A choice of one knob; choices are ordered as defined."""

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        members = list(type(self))
        return members.index(self) < members.index(other)

    # The enum's own hash is slow Python code, and plans are hashed by the thousand.
    __hash__ = str.__hash__


class Precision(Knob):
    """The number format of the matrix products. tf32 keeps fp32 tensors, fp8 keeps bf16 ones."""

    FP8 = "fp8"
    BF16 = "bf16"
    FP16 = "fp16"
    TF32 = "tf32"
    FP32 = "fp32"


class Sharding(Knob):
    """Sharding strategies: plain DDP, DeepSpeed ZeRO 0 to 3, or FSDP2's three.

    ``backend`` is the library that carries it out: ``ddp``, ``deepspeed`` or ``fsdp``. ``zero_stage`` is the equivalent
    ZeRO stage; FSDP shards all that stage 3 does.
    """

    backend: str
    zero_stage: int

    DDP = "ddp"
    ZERO_0 = "z0"
    ZERO_1 = "z1"
    ZERO_2 = "z2"
    ZERO_3 = "z3"
    FSDP_HYBRID = "fsdphyb"
    FSDP_SHARD_GRAD_OP = "fsdpsgo"
    FSDP = "fsdp"

    def __init__(self, short: str) -> None:
        # Plain attributes, since a ranking reads them by the thousand.
        self.backend = short if short == "ddp" else "fsdp" if short.startswith("fsdp") else "deepspeed"
        self.zero_stage = int(short[1]) if self.backend == "deepspeed" else 3 if self.backend == "fsdp" else 0


class Offload(Knob):
    """What lives in host memory (or on NVMe) instead of HBM."""

    NONE = "none"
    ACTIVATIONS = "activations"
    OPTIMIZER = "optimizer"
    PARAMETERS = "optimizer+parameters"
    NVME = "nvme"


class Optimizer(Knob):
    """The optimizer, which determines the size of its states."""

    ADAMW = "adamw"
    MUON = "muon"
    LION = "lion"
    SGD = "sgd"
    ADAFACTOR = "adafactor"
    ADAMW_8BIT = "adamw-8bit"


class GradientDtype(Knob):
    """The number format in which gradients are kept and accumulated."""

    MODEL = "model"
    FP32 = "fp32"


class Attention(Knob):
    """The attention kernel; eager keeps the whole score matrix for the backward pass."""

    FLASH = "flash"
    SDPA = "sdpa"
    EAGER = "eager"


@total_ordering
@dataclass(frozen=True)
class Checkpointing:
    """Activation checkpointing: ``none``, ``selective``, ``every-K`` layers, or ``full`` (every layer)."""

    mode: str = "none"
    every: int = 0

    def __post_init__(self) -> None:
        if self.mode not in ("none", "selective", "every", "full"):
            raise ValueError(f"checkpointing {self.mode!r} is unknown; use none, selective, every-K or full")
        if (self.mode == "every") != (self.every >= 2):
            raise ValueError("checkpointing every-K needs K of at least 2, and only every-K has a K")

    @classmethod
    def parse(cls, text: str) -> Checkpointing:
        """Parse ``none``, ``selective``, ``every-4`` or ``full``."""
        match = re.fullmatch(r"every-(\d+)", text)
        return cls("every", int(match[1])) if match else cls(text)

    def __str__(self) -> str:
        return f"every-{self.every}" if self.mode == "every" else self.mode

    def __lt__(self, other: Checkpointing) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, int]:
        # An order for lists, not by memory: every-K recomputes what full does, keeps fewer inputs of layers and
        # recomputes more layers at once, so the model and K decide which of the two is smaller.
        return ("none", "selective", "every", "full").index(self.mode), -self.every


NO_CHECKPOINTING = Checkpointing("none")
SELECTIVE = Checkpointing("selective")
FULL = Checkpointing("full")


# Optimizer memory by optimizer name: bytes of states per trainable parameter, and temporaries of a step. Sources:
# torch/optim (adamw.py, sgd.py, adafactor.py, _muon.py; foreach AdamW takes the roots of all second moments at once);
# bitsandbytes functional.py (quantize_blockwise: an fp32 absmax for 256 elements) and optim/optimizer.py (paged
# states are in managed memory); torchao optim/subclass_8bit.py, subclass_fp8.py and subclass_4bit.py (an fp32 scale
# for 256, 256 and 128 elements).
_FP32 = 4.0
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
# The fewest bits of one moment, and more than Adafactor takes.
_LEAST_NARROW_BYTES = 0.5
# Parts of a name that tell the optimizer's origin or implementation, but not its states.
_SILENT = re.compile(r"torch|bnb|bitsandbytes|hf|apex|xla|npu|fused|foreach|schedule_?free|ao|32_?bit")


class OptimizerBytes(NamedTuple):
    """Bytes per parameter: ``states``, and ``foreach`` temporaries of all parameters at once without a fused kernel.

    Parameters outside the repeated blocks have ``outside`` more; if so, a separate AdamW steps them, and ``foreach`` is
    its. A step that goes weight by weight has an ``update`` for each element of the current weight, and ``products`` in
    bf16 whatever the states are. Paged states are not in the allocator.
    """

    states: float
    outside: float = 0.0
    foreach: float = 0.0
    update: float = 0.0
    products: float = 0.0

    @property
    def alone(self) -> float:
        """What a step has for each element of the current weight."""
        return self.update + self.products

    def all_states(self, learning: float, outside: float) -> float:
        """The states of ``learning`` parameters, of which ``outside`` are outside the repeated blocks."""
        return self.states * learning + self.outside * outside

    def of_bytes(self, width: float) -> OptimizerBytes:
        """The same with moments of ``width`` bytes in place of four."""
        return OptimizerBytes(*(each * width / _FP32 for each in self))._replace(products=self.products)


def optimizer_bytes(name: str) -> OptimizerBytes | None:
    """The memory of an optimizer by its name in torch, transformers, bitsandbytes or torchao; None if unknown."""
    word = re.sub(r"[^a-z0-9]+", "_", name.lower())
    is_paged = "paged" in word
    few_bits = next((bits for bits in _MOMENT_BYTES if re.search(bits.replace("bit", "_?bit"), word)), None)
    word = re.sub(r"paged|fp8|[48]_?bit", "", word)
    base = _SILENT.sub("", word).replace("_", "")
    if base == "adafactor":
        return OptimizerBytes(_ADAFACTOR_BYTES, update=_FP32)
    moments = _MOMENTS.get(base)
    if moments is None:
        return None
    if is_paged:
        return OptimizerBytes(0.0)
    if few_bits:
        return OptimizerBytes(moments * _MOMENT_BYTES[few_bits])
    if base == "muon":
        return OptimizerBytes(_FP32, outside=_FP32, foreach=_FP32, update=_FP32, products=_MUON_PRODUCT_BYTES)
    if base == "lion":
        return OptimizerBytes(_FP32, update=_FP32)
    return OptimizerBytes(_FP32 * moments, foreach=0.0 if base == "sgd" else _FP32)


def is_narrow(state_bytes: float) -> bool:
    """Whether these are states of 8 bits or fewer, which come with scales."""
    return state_bytes >= _LEAST_NARROW_BYTES and state_bytes % 1 > 0


def bytes_of(optimizer: Optimizer) -> OptimizerBytes:
    """The memory of a plan's optimizer."""
    found = optimizer_bytes(optimizer.value)
    assert found
    return found


# Optimizer state per parameter in bytes, with fp32 moments.
STATE_BYTES: dict[Optimizer, float] = {each: bytes_of(each).states for each in Optimizer}
