"""Typed parsing of one published row's cells, with defaults for unknown values.

An empty cell or a missing column means that the source does not say. An unknown word takes a documented default and is
reported. Both may widen the row's interval.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from memtune.model.count import ALL_LINEAR

Value = TypeVar("Value")

DTYPE_BYTES = {"fp32": 4, "float32": 4, "tf32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp8": 1}
BACKENDS = {"none": "none", "ddp": "ddp", "fsdp": "fsdp", "fsdp2": "fsdp", "deepspeed": "deepspeed"}
METRICS = ("allocated", "active", "reserved", "device")
QUANTIZATIONS = {
    "none": "none", "nf4": "nf4", "nf4-dq": "nf4-dq", "fp4": "nf4", "int4": "nf4", "4bit": "nf4", "int8": "int8",
    "8bit": "int8",
}  # fmt: skip
CHECKPOINTINGS = {"none": "none", "no": "none", "selective": "selective", "full": "full", "yes": "full"}
# Names of adapter targets in tables, by module of a layer. A head is not adapted in this model: at rank r it has r x
# (hidden + vocabulary) parameters, far below the noise.
_ATTENTION = ("q_proj", "k_proj", "v_proj")
TARGETS = {
    "q": ("q_proj",),
    "k": ("k_proj",),
    "v": ("v_proj",),
    "qkv": _ATTENTION,
    "attention": (*_ATTENTION, "o_proj"),
    "o": ("o_proj",),
    "out": ("o_proj",),
    "proj": ("o_proj",),
    "output": ("o_proj",),
    "gate": ("gate_proj",),
    "up": ("up_proj",),
    "down": ("down_proj",),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "all": (ALL_LINEAR,),
    "all-linear": (ALL_LINEAR,),
}


class Cells:
    """One row by column. ``remarks`` lists the unknown values and the defaults taken instead."""

    def __init__(self, given: Mapping[str, str | None]) -> None:
        self._given = {name: (value or "").strip() for name, value in given.items() if name}
        self.remarks: list[str] = []

    def __getitem__(self, name: str) -> str:
        return self._given.get(name, "")

    def needed(self, name: str) -> str:
        """A cell without which nothing can be scored."""
        if not self[name]:
            raise ValueError(f"{name} is empty, and there is no default for it")
        return self[name]

    def number(self, name: str, default: float) -> float:
        """A number of at least 0, which may have thousands separators."""
        text = self[name].replace(",", "").replace("_", "")
        if not text:
            return default
        if not re.fullmatch(r"\d+(\.\d+)?(e\+?\d+)?", text, re.IGNORECASE):
            return self.unknown(name, default)
        return float(text)

    def whole(self, name: str, default: int) -> int:
        """A whole number; 0 counts as absent."""
        return int(self.number(name, default)) or default

    def word(self, name: str, known: Mapping[str, Value], default: Value) -> Value:
        """The value of a word, ignoring case; an unknown word takes the default."""
        text = self[name].lower()
        if not text:
            return default
        return known[text] if text in known else self.unknown(name, default)

    def says(self, name: str) -> bool:
        """Whether a cell says yes: anything except nothing, no and none."""
        return self[name].lower() not in ("", "no", "none", "false", "0", "n/a")

    def unknown(self, name: str, default: Value) -> Value:
        """Report a cell's unknown value, and the default."""
        remark = f"{name} {self[name]!r} is unknown and taken as {default!r}"
        if remark not in self.remarks:
            self.remarks.append(remark)
        return default
