"""`Plan`: one complete memory configuration. Frozen, hashable, ordered, with a stable short form and JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

from memtune.plans.knobs import Attention, Checkpointing, GradientDtype, Knob, Offload, Optimizer, Precision, Sharding
from memtune.words import camel

DEFAULT_BUCKET_ELEMENTS = 500_000_000
# Fused linear-cross-entropy makes logits for one chunk of tokens at a time (Liger, 2410.10989, section 3.2).
FUSED_LOSS_CHUNKS = 8
# As the field `tuning.plan` allows; `training.globalBatchSize` has no more digits.
_BATCH = re.compile(r"mb([0-9]{1,8})x([0-9]{1,8})")
_SIZE = "[1-9][0-9]{0,7}"
_SHORT_CHECKPOINTING = {"none": "none", "selective": "sel", "full": "full"}
_SHORT_OFFLOAD = {
    Offload.ACTIVATIONS: "oact",
    Offload.OPTIMIZER: "oopt",
    Offload.PARAMETERS: "oparam",
    Offload.NVME: "onvme",
}
_SHORT_OPTIMIZER: dict[Optimizer, str] = {o: o.value.replace("-", "") for o in Optimizer if o is not Optimizer.ADAMW}
_SHORT_ATTENTION: dict[Attention, str] = {a: a.value for a in Attention if a is not Attention.FLASH}


@dataclass(frozen=True, order=True)
class Plan:
    """One complete memory configuration. Micro-batch x accumulation x world is always the job's global batch."""

    precision: Precision
    sharding: Sharding
    checkpointing: Checkpointing
    micro_batch: int
    accumulation: int
    offload: Offload = Offload.NONE
    optimizer: Optimizer = Optimizer.ADAMW
    fused_optimizer: bool = True
    gradient_dtype: GradientDtype = GradientDtype.MODEL
    attention: Attention = Attention.FLASH
    fused_loss: bool = False
    bucket_elements: int = DEFAULT_BUCKET_ELEMENTS
    expandable_segments: bool = False
    max_split_size_mib: int = 0

    def __post_init__(self) -> None:
        for name in ("micro_batch", "accumulation", "bucket_elements"):
            if getattr(self, name) < 1:
                raise ValueError(f"plan: {name} is {getattr(self, name)}; it must be at least 1")
        if self.max_split_size_mib and self.max_split_size_mib <= 20:
            # torch rejects values below the size of a large segment, 20 MiB.
            raise ValueError(f"plan: max_split_size_mib is {self.max_split_size_mib}; it must be 0 (off) or above 20")
        if self.sharding is Sharding.DDP and self.offload not in (Offload.NONE, Offload.ACTIVATIONS):
            raise ValueError(f"plan: DDP cannot offload {self.offload}; use a ZeRO stage or FSDP")
        if self.offload in (Offload.PARAMETERS, Offload.NVME) and self.sharding.zero_stage < 3:
            raise ValueError(f"plan: offload {self.offload} needs sharded parameters (z3 or fsdp), not {self.sharding}")
        if self.offload is Offload.OPTIMIZER and self.sharding.backend == "fsdp":
            raise ValueError("plan: FSDP offloads parameters, gradients and optimizer states together; use oparam")
        if self.offload is Offload.NVME and self.sharding.backend != "deepspeed":
            raise ValueError(f"plan: only DeepSpeed offloads to NVMe, not {self.sharding}")

    @property
    def compute_bytes(self) -> int:
        """Bytes of one element of what is computed: activations, gathered weights, gradients."""
        return 4 if self.precision in (Precision.FP32, Precision.TF32) else 2

    @property
    def offloads_states(self) -> bool:
        """Whether the optimizer's states are in host memory or on NVMe, and its step runs there."""
        return self.offload in (Offload.OPTIMIZER, Offload.PARAMETERS, Offload.NVME)

    @property
    def offloads_weights(self) -> bool:
        """Whether the weights are in host memory or on NVMe between their uses."""
        return self.offload in (Offload.PARAMETERS, Offload.NVME)

    def global_batch(self, world: int) -> int:
        """The sequences of one optimizer step over all ranks."""
        return self.micro_batch * self.accumulation * world

    def with_micro_batch(self, micro_batch: int) -> Plan:
        """The same plan at another micro-batch with the same global batch."""
        return self.for_samples(self.micro_batch * self.accumulation, micro_batch)

    def for_samples(self, samples: int, micro_batch: int) -> Plan:
        """The same plan at a micro-batch, accumulating until each rank has had so many sequences in a step."""
        if micro_batch < 1 or samples % micro_batch:
            raise ValueError(f"micro-batch {micro_batch} does not divide the {samples} sequences of each rank")
        return self.with_batch(micro_batch, samples // micro_batch)

    def with_batch(self, micro_batch: int, accumulation: int) -> Plan:
        """The same plan with another batch. Other knobs are not validated again: spaces have thousands of plans."""
        if micro_batch < 1 or accumulation < 1:
            raise ValueError(f"plan: {micro_batch} x {accumulation} is no batch; both must be at least 1")
        plan = object.__new__(Plan)
        plan.__dict__.update(self.__dict__, micro_batch=micro_batch, accumulation=accumulation, family=self.family)
        return plan

    @cached_property
    def family(self) -> tuple[object, ...]:
        """Every knob except the batch, shared by plans that only divide a rank's sequences differently."""
        return _family_of(self)

    def __str__(self) -> str:
        return "-".join([*self._head(), *self._suffixes()])

    def _head(self) -> list[str]:
        checkpointing = _SHORT_CHECKPOINTING.get(self.checkpointing.mode, f"every{self.checkpointing.every}")
        batch = f"mb{self.micro_batch}x{self.accumulation}"
        return [str(self.precision), str(self.sharding), checkpointing, batch]

    def _suffixes(self) -> list[str]:
        millions, rest = divmod(self.bucket_elements, 1_000_000)
        bucket = f"bk{self.bucket_elements}" if rest else f"bk{millions}m"
        optional = [
            _SHORT_OFFLOAD.get(self.offload, ""),
            _SHORT_OPTIMIZER.get(self.optimizer, ""),
            "" if self.fused_optimizer else "foreach",
            "g32" if self.gradient_dtype is GradientDtype.FP32 else "",
            _SHORT_ATTENTION.get(self.attention, ""),
            "fl" if self.fused_loss else "",
            "" if self.bucket_elements == DEFAULT_BUCKET_ELEMENTS else bucket,
            "exp" if self.expandable_segments else "",
            f"split{self.max_split_size_mib}" if self.max_split_size_mib else "",
        ]
        return [suffix for suffix in optional if suffix]

    @classmethod
    @lru_cache(4096)
    def parse(cls, text: str) -> Plan:
        """Parse the short form, such as ``bf16-z2-sel-mb4x8``."""
        head, suffixes = text.strip().split("-")[:4], text.strip().split("-")[4:]
        if len(head) < 4:
            raise ValueError(_shape(text, "it has fewer than four parts"))
        batch = _BATCH.fullmatch(head[3])
        if batch is None:
            said = f"{head[3]!r} is not a micro-batch and accumulation like mb4x8, each of 8 digits at most"
            raise ValueError(_shape(text, said))
        options: dict[str, Any] = {}
        for suffix in suffixes:
            name, value = _read_suffix(suffix, text)
            if name in options:
                raise ValueError(_shape(text, f"{suffix!r} sets {name} a second time"))
            options[name] = value
        return cls(
            precision=_read_knob(Precision, head[0], text),
            sharding=_read_knob(Sharding, head[1], text),
            checkpointing=_read_checkpointing(head[2], text),
            micro_batch=int(batch[1]),
            accumulation=int(batch[2]),
            **options,
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values, by the names that status, reports and environment variables use."""
        return {camel(f.name): _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """Parse what ``to_json`` wrote; a missing field takes its default, an unknown one is an error."""
        by_name = {camel(f.name): f.name for f in fields(cls)}
        unknown = sorted(set(data) - set(by_name))
        missing = [n for n in ("precision", "sharding", "checkpointing", "microBatch", "accumulation") if n not in data]
        if unknown or missing:
            raise ValueError(f"plan: unknown fields {unknown}, missing fields {missing}; allowed are {sorted(by_name)}")
        return cls(**{by_name[name]: _READERS.get(by_name[name], _same)(value) for name, value in data.items()})


_family_of: Callable[[Plan], tuple[object, ...]] = attrgetter(
    *[f.name for f in fields(Plan) if f.name not in ("micro_batch", "accumulation")]
)


def _same(value: Any) -> Any:
    return value


_READERS: dict[str, Any] = {
    "precision": Precision,
    "sharding": Sharding,
    "checkpointing": Checkpointing.parse,
    "offload": Offload,
    "optimizer": Optimizer,
    "gradient_dtype": GradientDtype,
    "attention": Attention,
}

_FLAGS: dict[str, tuple[str, Any]] = {
    "foreach": ("fused_optimizer", False),
    "g32": ("gradient_dtype", GradientDtype.FP32),
    "fl": ("fused_loss", True),
    "exp": ("expandable_segments", True),
    **{short: ("offload", offload) for offload, short in _SHORT_OFFLOAD.items()},
    **{short: ("optimizer", optimizer) for optimizer, short in _SHORT_OPTIMIZER.items()},
    **{short: ("attention", attention) for attention, short in _SHORT_ATTENTION.items()},
}
# The numbers of options that have one: a bucket's elements, and a largest split that torch accepts.
_NUMBERED = {
    "bucket_elements": "bk[1-9][0-9]{0,11}m?",
    "max_split_size_mib": "split(2[1-9]|[3-9][0-9]|[1-9][0-9]{2,7})",
}


def _options() -> dict[str, str]:
    words: dict[str, list[str]] = {}
    for short, (knob, _) in sorted(_FLAGS.items()):
        words.setdefault(knob, []).append(short)
    return {knob: "|".join(shorts) for knob, shorts in words.items()} | _NUMBERED


def _short_form() -> str:
    precisions, shardings = ("|".join(knob.value for knob in kind) for kind in (Precision, Sharding))
    checkpointings = "|".join([*_SHORT_CHECKPOINTING.values(), "every([2-9]|[1-9][0-9]{1,7})"])
    options = "|".join(OPTIONS.values())
    return f"^({precisions})-({shardings})-({checkpointings})-mb{_SIZE}x{_SIZE}(-({options}))*$"


# For each knob that is an option of the short form, the regular expression of its text.
OPTIONS = _options()
# The regular expression of the short form. It does not check which choices go together.
SHORT_FORM = _short_form()


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, (Knob, Checkpointing)) else value


def _shape(text: str, why: str) -> str:
    return f"plan {text!r}: {why}; a plan is written like bf16-z2-sel-mb4x8"


def _read_knob(kind: type[Knob], token: str, text: str) -> Any:
    try:
        return kind(token)
    except ValueError:
        raise ValueError(_shape(text, f"{token!r} is not one of {', '.join(k.value for k in kind)}")) from None


def _read_checkpointing(token: str, text: str) -> Checkpointing:
    for mode, short in _SHORT_CHECKPOINTING.items():
        if token == short:
            return Checkpointing(mode)
    every = re.fullmatch(r"every([0-9]{1,8})", token)
    if every is None:
        raise ValueError(_shape(text, f"{token!r} is not one of none, sel, full, everyK"))
    return Checkpointing("every", int(every[1]))


def _read_suffix(token: str, text: str) -> tuple[str, Any]:
    if token in _FLAGS:
        return _FLAGS[token]
    if bucket := re.fullmatch(r"bk([0-9]{1,12})(m?)", token):
        return "bucket_elements", int(bucket[1]) * (1_000_000 if bucket[2] else 1)
    if split := re.fullmatch(r"split([0-9]{1,8})", token):
        return "max_split_size_mib", int(split[1])
    raise ValueError(
        _shape(text, f"{token!r} is no option; options are {', '.join(sorted(_FLAGS))}, bkN, bkNm, splitN")
    )
