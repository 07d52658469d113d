"""The knobs of a plan and their choices, usually the fastest first and the most memory-saving last."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

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
    """The tensors that live in host memory (or on NVMe) instead of HBM."""

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

    @property
    def keeps_products(self) -> bool:
        """Whether the products of linear layers are kept, which nothing may then change in place."""
        return self.mode == "selective"

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
