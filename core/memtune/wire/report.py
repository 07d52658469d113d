"""The report that the runner writes when a run ends: its fields, and its parser.

A report comes from the user's own container, so it is untrusted: size, schema and ranges are checked, and text is
stripped of what breaks terminals and encoders. It may also be truncated, because the containers of one pod share 12 KiB
of termination messages; then every field that was complete before the cut still counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Annotated, Any, NamedTuple, get_type_hints

from memtune.wire.probe_pruning import Pruned
from memtune.wire.report_checks import ReportError, choice, count, exit_code, flag, rate, shown, text, word
from memtune.words import Word, camel

VERSION = 1
LOG_MARK = "memtune-report: "
TERMINATION_MESSAGE_BYTES = 1_500
LOG_TAIL_BYTES = 800
# Enough for a curve; the status keeps the steps of every probe.
MOST_STEPS = 5
# For all warnings together. The message of a run is hardly longer.
LARGEST_WARNING = 280

# CUDA's own text for its error codes (CUDA Runtime API, cudaError_t).
BROKEN_GPU = re.compile(r"uncorrectable (ECC|NVLink) error|hardware stack error")

# Far above what the runner writes; a larger text is not the runner's.
_LARGEST_TEXT = 65_536
_LARGEST_NAME = 80
_LARGEST_MESSAGE = 4_000
_LARGEST_LIST = 32
_DEEPEST = 8
_CLOSER = {"{": "}", "[": "]"}


class Ending(Word):
    """How a run ended, as the runner saw it. The operator derives the verdict from it."""

    SUCCEEDED = "succeeded"
    DEVICE_OOM = "device-oom"
    HOST_OOM = "host-oom"
    HUNG = "hung"
    ERROR = "error"
    TERMINATED = "terminated"
    KILLED = "killed"
    BAD_INPUT = "bad-input"
    PLAN_NOT_APPLIED = "plan-not-applied"


class Phase(Word):
    """The part of the run in which it ended."""

    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER_STEP = "optimizer-step"
    EVALUATION = "evaluation"
    SAVE = "save"


class Device(Word):
    """The device that the run was measured on."""

    CUDA = "cuda"
    VIRTUAL = "virtual"
    EMULATED = "emulated"


class ReportedComponent(NamedTuple):
    """One of the largest parts of the memory at the peak."""

    name: str
    size_bytes: int


def _components(value: Any) -> tuple[ReportedComponent, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > _LARGEST_LIST:
        raise ReportError(f"{shown(value)} is not a list of at most {_LARGEST_LIST} components")
    # Truncation may leave a name without its size.
    pairs = [each for each in value if isinstance(each, (list, tuple)) and len(each) == 2]
    return tuple(ReportedComponent(text(_LARGEST_NAME)(name), count(size_bytes)) for name, size_bytes in pairs)


class MeasuredStep(NamedTuple):
    """One step of a probe: its number, its seconds with all micro-batches, and the peak up to its end."""

    number: int
    seconds: float
    device_bytes: int


def _measured_steps(value: Any) -> tuple[MeasuredStep, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > MOST_STEPS:
        raise ReportError(f"{shown(value)} is not a list of at most {MOST_STEPS} steps")
    triples = [each for each in value if isinstance(each, (list, tuple)) and len(each) == 3]
    return tuple(MeasuredStep(count(number), rate(seconds), count(size)) for number, seconds, size in triples)


# A field's type carries its check.
_Count = Annotated[int | None, count]
_Rate = Annotated[float | None, rate]
_Flag = Annotated[bool | None, flag]
_Word = Annotated[str | None, word(16)]


@dataclass(frozen=True)
class Memory:
    """The memory of the rank with the highest peak; None if not measured.

    ``made_up_sizes`` is how often a tensor on an emulated GPU got its size from values that no kernel had computed.
    """

    device_total_bytes: _Count = None
    peak_allocated_bytes: _Count = None
    peak_active_bytes: _Count = None
    peak_reserved_bytes: _Count = None
    peak_inactive_split_bytes: _Count = None
    non_torch_bytes: _Count = None
    largest_free_block_bytes: _Count = None
    failed_request_bytes: _Count = None
    alloc_retries: _Count = None
    made_up_sizes: _Count = None

    @property
    def peak_device_bytes(self) -> int:
        """Device memory in use at the peak, as far as measured."""
        return (self.peak_reserved_bytes or self.peak_allocated_bytes or 0) + (self.non_torch_bytes or 0)


@dataclass(frozen=True)
class Applied:
    """The runner's observations of the user's code; None if not observed.

    ``weight_dtype`` is that of the weights that learn as the script keeps them, ``compute_dtype`` that of the first
    linear layer's matrix product: they differ under autocast. ``backend`` is ``none`` where no wrapper was seen.
    ``sharding`` is FSDP's strategy as in a plan; ``zero_stage`` describes the other backends. ``evaluation_batch`` is
    that of the model's forward passes without gradients; no plan asks for one. ``expandable_segments`` says whether
    torch's allocator has any; it is asked only under a plan that wants them. ``optimizer`` is one of a plan's, or else
    its class. ``attention`` is ``sdpa`` or ``eager``; it and ``fused_loss`` are seen by the engine.
    """

    micro_batch: _Count = None
    micro_steps: _Count = None
    samples_per_step: _Count = None
    largest_tokens: _Count = None
    backend: _Word = None
    zero_stage: _Count = None
    sharding: _Word = None
    weight_dtype: _Word = None
    gradient_dtype: _Word = None
    compute_dtype: _Word = None
    checkpointed_blocks: _Count = None
    evaluation_batch: _Count = None
    expandable_segments: _Flag = None
    optimizer: _Word = None
    attention: _Word = None
    fused_loss: _Flag = None


def _part(kind: type[Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        return _read_fields(kind, _plain_fields(value) if isinstance(value, kind) else value)

    return read


@dataclass(frozen=True)
class Report:
    """One report. Fields are in the order of their importance for a verdict: truncation loses the last ones first.

    ``failure_order`` is the place of this pod's failure among those of all pods, as the rendezvous store counted them.
    ``resumed_samples`` and ``checkpoint_samples`` count the samples behind the checkpoint that the run started from and
    behind the newest complete one when it ended; ``trained_samples`` those that the training had behind it then, and
    ``total_samples`` those that it has in all, over the ranks of this pod. ``own_batch`` is the optimizer step's batch
    over all pods by the script's own numbers, if the integration replaced them. ``bad_command`` says that the run
    failed before it trained, of a command that fails under any plan. ``pruned`` is why a probe made fewer steps than
    requested. ``torch`` and ``driver`` are the versions that it was measured with. ``warnings`` say in sentences what
    the script should do otherwise, although the run could go on.
    """

    ending: Annotated[Ending, choice(Ending)]
    exit_code: Annotated[int, exit_code]
    failure_order: _Count = None
    run: Annotated[str | None, word(63)] = None
    plan: Annotated[str | None, word(120)] = None
    rank: _Count = None
    world: _Count = None
    attempt: _Count = None
    steps: _Count = None
    skipped_steps: _Count = None
    resumed_samples: _Count = None
    checkpoint_samples: _Count = None
    trained_samples: _Count = None
    total_samples: _Count = None
    own_batch: _Count = None
    bad_command: _Flag = None
    checkpoint_format: _Word = None
    phase: Annotated[Phase | None, choice(Phase)] = None
    device: Annotated[Device | None, choice(Device)] = None
    memory: Annotated[Memory, _part(Memory)] = Memory()
    applied: Annotated[Applied, _part(Applied)] = Applied()
    length_covered: _Flag = None
    evaluation_covered: _Flag = None
    save_covered: _Flag = None
    step_seconds: _Rate = None
    tokens_per_second: _Rate = None
    pruned: Annotated[Pruned | None, choice(Pruned)] = None
    torch: Annotated[str | None, word(32)] = None
    driver: _Word = None
    warnings: Annotated[str, text(LARGEST_WARNING)] = ""
    message: Annotated[str, text(_LARGEST_MESSAGE)] = ""
    largest: Annotated[tuple[ReportedComponent, ...], _components] = ()
    measured_steps: Annotated[tuple[MeasuredStep, ...], _measured_steps] = ()
    log_tail: Annotated[str, text(LOG_TAIL_BYTES, keep_end=True)] = ""

    def __post_init__(self) -> None:
        for name, check in _CHECKS[Report].items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _checked(name, check, value))

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, the version first, without unknown or empty fields."""
        return {"version": VERSION, **_plain_fields(self)}


def _checks(kind: type[Any]) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name].__metadata__[0] for each in fields(kind)}


_CHECKS = {kind: _checks(kind) for kind in (Memory, Applied, Report)}


def read_report(raw: str | bytes) -> Report:
    """Parse a report, or what is left of a truncated one; raise ReportError if it is none."""
    if len(raw) > _LARGEST_TEXT:
        raise ReportError(f"a report has at most {_LARGEST_TEXT} characters, this has {len(raw)}")
    written = raw.decode("ascii", "replace") if isinstance(raw, bytes) else raw
    try:
        data = json.loads(written, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        data = _loads_prefix(written)
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise ReportError(f"the text is not a report of version {VERSION}: it starts with {shown(written)}")
    report: Report = _read_fields(Report, data)
    return report


def _loads_prefix(written: str) -> Any:
    try:
        return json.loads(_closed_prefix(written), parse_constant=_refuse_constant)
    except ValueError:
        raise ReportError(f"the text is not JSON, whole or cut short: it starts with {shown(written)}") from None


def _closed_prefix(written: str) -> str:
    """Cut after the last complete field: half of a measurement would be taken for all of it."""
    closers = ""
    in_string = escaped = False
    best_end, best_closers = 0, ""
    for position, character in enumerate(written):
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in _CLOSER:
            closers = _CLOSER[character] + closers
            if len(closers) > _DEEPEST:
                break
        elif character in "}]":
            closers = closers[1:]
            if len(closers) <= 1:
                best_end, best_closers = position + 1, closers
        elif character == "," and len(closers) <= 1:
            best_end, best_closers = position, closers
    return written[:best_end] + best_closers


def _read_fields(kind: type[Any], data: Any) -> Any:
    if not isinstance(data, dict):
        raise ReportError(f"{shown(data)} is not an object")
    required = ("ending", "exit_code") if kind is Report else ()
    values = {}
    for name, check in _CHECKS[kind].items():
        written = camel(name)
        if data.get(written) is not None:
            values[name] = _checked(written, check, data[written])
        elif name in required:
            raise ReportError(f"{written} is missing; a report needs it")
    return kind(**values)


def _checked(name: str, check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except ReportError as error:
        raise ReportError(f"{name}: {error}") from None


def _plain_fields(value: Any) -> dict[str, Any]:
    plain = {camel(each.name): _plain(getattr(value, each.name)) for each in fields(value)}
    return {name: each for name, each in plain.items() if each not in (None, "", [], {})}


def _plain(value: Any) -> Any:
    if isinstance(value, (Memory, Applied)):
        return _plain_fields(value)
    if isinstance(value, tuple):
        return [list(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
