"""`status` of a job, written by the operator alone. Every size is bounded: the whole stays under 128 KiB."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from memtune.api.errors import SpecError, problems_of
from memtune.api.fields import (
    ASCII,
    CONDITION_REASON,
    OBJECT_NAME,
    PLAN_NAME,
    WORD,
    Count,
    Flag,
    Number,
    Price,
    SpecBlock,
    Whole,
)
from memtune.api.tuning import MAX_PROBES
from memtune.words import shortened

MAX_ATTEMPTS = 12
MAX_NUMBER = 10_000
MAX_COMPONENTS = 32
MAX_FRONT = 12
MAX_EMULATIONS = 4
MAX_STEPS = 24
# The largest integer that every JSON parser reads exactly.
MAX_NATURAL = 2**53
# Characters of the messages of a run, of a trace run, and of the job and its conditions.
SENTENCE = 288
EXPLANATION = 512
JOB_MESSAGE = 768
# The last second that RFC 3339 can express.
_LATEST = 253_402_300_799

Phase = Literal[
    "Pending", "Predicting", "Probing", "Launching", "Running", "Recovering", "Suspended", "Succeeded", "Failed"
]
ConditionType = Literal["Predicted", "Tuned", "Launched", "Complete", "Failed", "Suspended", "Queued", "Stalled"]
VerdictName = Literal[
    "succeeded",
    "device-oom",
    "host-oom",
    "disrupted",
    "unschedulable",
    "queued",
    "image-error",
    "user-error",
    "plan-not-applied",
    "hung",
]

Natural = Annotated[Whole, Field(ge=0, le=MAX_NATURAL)]
Amount = Annotated[Number, Field(ge=0, le=1e18)]
Name = Annotated[str, Field(pattern=WORD, max_length=63)]
RunName = Annotated[str, Field(pattern=OBJECT_NAME, max_length=63)]
PlanName = Annotated[str, Field(pattern=PLAN_NAME, max_length=128)]
Sentence = Annotated[str, Field(pattern=ASCII, max_length=SENTENCE)]
Explanation = Annotated[str, Field(pattern=ASCII, max_length=EXPLANATION)]
JobMessage = Annotated[str, Field(pattern=ASCII, max_length=JOB_MESSAGE)]
RunNumber = Annotated[Count, Field(le=MAX_NUMBER)]
Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
NodeName = Annotated[str, Field(pattern=WORD, max_length=128)]
OutOfMemoryPhase = Literal["", "init", "forward", "backward", "optimizer-step", "evaluation", "save"]
OutOfMemory = Literal["", "fragmentation", "activation", "state", "outside", "evaluation", "saving"]
ProbingEnd = Literal["", "search", "max-probes", "max-gpu-seconds"]


class StatusBlock(SpecBlock):
    """A block of the status. Unknown fields, from an older or newer operator, are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True, validate_by_name=True)


class Condition(StatusBlock):
    """One metav1.Condition."""

    type: ConditionType = Field(description="The type of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    observed_generation: Natural = Field(default=0, description="Generation of the spec that it was seen on.")
    last_transition_time: Time = Field(description="When status last changed.")
    reason: Annotated[str, Field(pattern=CONDITION_REASON, max_length=64)] = Field(
        description="Why, in one CamelCase word."
    )
    message: JobMessage = Field(default="", description="Why, in words.")


class IntervalBytes(StatusBlock):
    """A predicted amount of memory, never a bare number."""

    lower: Natural = Field(description="Bytes that are needed at the least.")
    expected: Natural = Field(description="Bytes that are expected.")
    upper: Natural = Field(description="Bytes that are needed at the most: the 95% bound.")


class ComponentBytes(IntervalBytes):
    """One component of a prediction, at the peak."""

    name: Name = Field(description="Name of the component, such as weights or activations.")


class PredictionStatus(StatusBlock):
    """The memory of one rank as predicted: under the plan in force, or before any, under the best one."""

    plan: PlanName = Field(description="Short form of the plan that was predicted.")
    peak_phase: Name = Field(description="Phase of the step that peaks highest.")
    device_bytes: IntervalBytes = Field(description="Memory of the whole device in use at the peak.")
    needed_bytes: IntervalBytes | None = Field(
        default=None, description="The least memory in which the plan runs, if torch's allocator empties its cache."
    )
    fit_percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None, description="Probability in percent that what the plan needs leaves tuning.headroom free."
    )
    usable_bytes: Natural = Field(description="Memory that the GPU gives to a process.")
    components: Annotated[tuple[ComponentBytes, ...], Field(max_length=MAX_COMPONENTS)] = Field(
        default=(), description="The components that add up to deviceBytes."
    )
    tokens_per_second: Natural = Field(default=0, description="Tokens per second over all GPUs, as expected.")
    cost_per_million_tokens: Amount | None = Field(
        default=None, description="Dollars per million tokens at that speed and at gpuHourPrice; absent without either."
    )


class PlanStatus(StatusBlock):
    """The plan that runs, or will be launched."""

    name: PlanName = Field(
        description="Short form of the plan, such as bf16-z2-sel-mb4x8; every knob can be read from it."
    )
    hbm: Annotated[str, Field(pattern=ASCII, max_length=32)] = Field(
        default="",
        description="Peak over usable memory of the fullest GPU, such as 71.2/79.6Gi: as measured, else as predicted.",
    )
    tokens_per_second: Natural = Field(
        default=0, description="Tokens per second over all GPUs: as measured, else as predicted."
    )
    cost_per_million_tokens: Amount | None = Field(
        default=None, description="Dollars per million tokens at that speed and at gpuHourPrice; absent without either."
    )


class PeakBytes(StatusBlock):
    """Measured peaks of a run, the maximum over all ranks."""

    allocated: Natural = Field(description="Bytes in tensors.")
    active: Natural = Field(description="Bytes in blocks in use, with those that a stream still holds.")
    reserved: Natural = Field(description="Bytes that the caching allocator took from the driver.")
    device: Natural = Field(description="Bytes in use on the whole device.")
    total: Natural = Field(description="Bytes that the device has.")


class RecordStatus(StatusBlock):
    """Fields of every run, of any kind."""

    name: RunName = Field(description="Name of the run; its pods and its Service begin with it.")
    number: RunNumber = Field(description="Number of the run among those of its kind, from 1.")
    created: Flag = Field(default=False, description="Whether all its pods have been seen; one missing now is lost.")
    verdict: VerdictName | None = Field(
        default=None, description="The result of the run; absent until it has ended, and if the operator stopped it."
    )
    started_at: Time | None = Field(default=None, description="When the last of its wrapped containers started.")
    ended_at: Time | None = Field(default=None, description="When the run ended; absent while it goes on.")


class TraceStatus(RecordStatus):
    """The run that traces model.factory on a CPU, recorded before its pod is created."""

    message: Explanation = Field(default="", description="The result of the trace, or why it failed, in one sentence.")


class StepStatus(StatusBlock):
    """The measurements of one step of a probe."""

    probe: RunNumber = Field(description="Number of the probe.")
    step: RunNumber = Field(description="Number of the step, from 1; the first one warms up, and is not here.")
    seconds: Amount = Field(description="Seconds of the step, with all of the plan's micro-batches.")
    device_bytes: Natural = Field(description="Peak of the device's memory until its end.")


class RunStatus(RecordStatus):
    """One run of a plan, recorded before its first pod is created: a probe or an attempt."""

    plan: PlanName = Field(description="Short form of the plan that the run executes.")
    emulated: Flag = Field(
        default=False,
        description="Whether it runs on an emulated GPU: its memory and operations are counted, nothing is computed.",
    )
    predicted_bytes: Natural = Field(
        default=0, description="Device memory that was expected when the run was recorded."
    )
    peak_bytes: PeakBytes | None = Field(default=None, description="Peaks that the run measured.")
    allocator_retries: Natural = Field(
        default=0, description="Times the allocator had to free its cache and try again."
    )
    tokens_per_second: Natural = Field(default=0, description="Tokens per second over all GPUs.")
    step_seconds: Amount = Field(default=0.0, description="Median seconds of one step; 0 if not measured.")
    gpu_seconds: Natural = Field(default=0, description="Seconds from the containers' start to end, times GPUs.")
    length_covered: Flag | None = Field(
        default=None,
        description="Whether the longest sequences were in its batches; if not, its plan takes more than was measured.",
    )
    out_of_memory: OutOfMemory = Field(
        default="", description="Kind of out-of-memory that the run died of; empty if it did not."
    )
    phase: OutOfMemoryPhase = Field(
        default="", description="Phase of the step that it ran out of memory in; empty if it did not, or none is known."
    )
    demanded_bytes: Natural = Field(
        default=0, description="Device memory that it had and asked for when it ran out; 0 if it did not."
    )
    torch: Annotated[str, Field(pattern=WORD, max_length=32)] = Field(
        default="", description="Version of torch that the run reported; empty if it reported none."
    )
    driver: Annotated[str, Field(pattern=WORD, max_length=16)] = Field(
        default="", description="Version of the NVIDIA driver that the run reported; empty if it reported none."
    )
    pruned: Literal["", "speed", "memory"] = Field(
        default="", description="Why the probe ended early: by what it could not win any more. Empty if it did not."
    )
    measured_by: Name = Field(
        default="",
        description="Name of the earlier job that ran the probe; empty if this job did.",
    )
    message: Sentence = Field(default="", description="The course of the run, in one sentence.")

    @property
    def is_probe(self) -> bool:
        """Whether it only measures its plan, on GPUs or emulated, and trains nothing."""
        return True


class ProbeStatus(RunStatus):
    """One probe: a few steps that measure a plan, recorded before its first pod is created."""


class EmulationStatus(ProbeStatus):
    """One emulated probe: a few steps of a plan on an emulated GPU, in one pod without a GPU."""

    recorded_at: Time | None = Field(
        default=None, description="When it was recorded; one that has not started long after is given up."
    )
    gpu: Annotated[str, Field(pattern=WORD, max_length=32)] = Field(
        default="", description="GPU that is emulated, as MemTune names it, such as h100-80gb."
    )
    gpu_bytes: Natural = Field(default=0, description="Memory of the emulated GPU.")
    host_request_bytes: Natural = Field(default=0, description="Host memory that its pod asks for, and may take.")
    step_seconds: Amount = Field(
        default=0.0, description="Seconds that one step takes by its operations; 0 if they were not counted."
    )
    made_up_sizes: Natural = Field(
        default=0,
        description="How often a tensor got its size from values that no kernel had computed; with others, memory "
        "differs.",
    )


class AttemptStatus(RunStatus):
    """One attempt: a run of the training itself."""

    rung: Name = Field(default="", description="Step of the downgrade ladder that led here; empty if none was taken.")
    resumed_samples: Natural = Field(
        default=0, description="Samples already trained in the checkpoint it resumed from."
    )
    resume: Literal["no", "direct", "convert"] = Field(
        default="no", description="Whether it resumes from a checkpoint, and whether that is converted first."
    )
    checkpoint_samples: Natural = Field(
        default=0, description="Samples behind the newest complete checkpoint when it ended."
    )
    checkpoint_format: Annotated[str, Field(pattern=WORD, max_length=16)] = Field(
        default="", description="Format of the newest complete checkpoint when it ended."
    )
    restarted_at: Natural = Field(
        default=0,
        description="Attempt at which the training began from step 0 again, past what was saved before; 0 if none did.",
    )
    trained: Flag = Field(default=False, description="Whether it took optimizer steps, or may have taken some.")
    checkpoint: Literal["none", "unknown", "saved"] = Field(
        default="none", description="Whether there is a complete checkpoint of it; unknown without a report."
    )
    lost_node: NodeName = Field(default="", description="Node that took the run down with it.")
    evaluation_batch: Natural = Field(
        default=0,
        description="Evaluation batch of an evaluation that ran out of memory, or the lowered one after it; "
        "0 leaves the script's own.",
    )
    sharded_save: Flag = Field(default=False, description="Whether saves gather nothing, after one ran out of memory.")
    host_request_bytes: Natural = Field(
        default=0,
        description="Least host memory that each pod requests: the prediction for a plan that offloads, or more "
        "after it ran out; 0 leaves the template's.",
    )

    @property
    def is_probe(self) -> bool:
        """False: it trains."""
        return False


class Status(StatusBlock):
    """The operator's knowledge and decisions."""

    phase: Phase = Field(default="Pending", description="Where the job is on its way.")
    observed_generation: Natural = Field(default=0, description="Generation of the spec that this status is about.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8)] = Field(
        default=(),
        description="The state of the job in metav1.Conditions, one for each type.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    trace: TraceStatus | None = Field(default=None, description="The run that traced model.factory, if one had to.")
    prediction: PredictionStatus | None = Field(
        default=None, description="The prediction for the plan in force; before there is one, for the best plan."
    )
    plan: PlanStatus | None = Field(default=None, description="The plan that runs, or will be launched.")
    front: Annotated[tuple[RunNumber, ...], Field(max_length=MAX_FRONT)] = Field(
        default=(),
        description="With both objectives: numbers of the probes whose plans no other one beats in both, the fastest "
        "first.",
    )
    gpu_product: Annotated[str, Field(pattern=WORD, max_length=63)] = Field(
        default="",
        description="GPU product of every run; empty if no node has a product label, or the job names one.",
    )
    gpu_hour_price: Price | None = Field(
        default=None,
        description="Dollars of one GPU for one hour by which costs are reckoned: the job's own, or the operator's of "
        "the product; absent without one.",
    )
    fixed: Annotated[tuple[Name, ...], Field(max_length=9)] = Field(
        default=(),
        description="Generation of the spec with which the job got under way, "
        "and a hash of each field that cannot change any more.",
    )
    first_running_at: Time | None = Field(
        default=None, description="When the first pod of the job was running; activeDeadlineSeconds counts from it."
    )
    emulations: Annotated[tuple[EmulationStatus, ...], Field(max_length=MAX_EMULATIONS)] = Field(
        default=(), description="Every emulated probe, in the order in which they were recorded."
    )
    probes: Annotated[tuple[ProbeStatus, ...], Field(max_length=MAX_PROBES)] = Field(
        default=(),
        description="Every probe run, in the order in which they were recorded; those of earlier jobs come first.",
    )
    measured_steps: Annotated[tuple[StepStatus, ...], Field(max_length=MAX_STEPS)] = Field(
        default=(), description="Measurements of some steps of each probe."
    )
    attempts: Annotated[tuple[AttemptStatus, ...], Field(max_length=MAX_ATTEMPTS)] = Field(
        default=(), description="The newest attempts, in the order in which they were recorded."
    )
    probing_ended: ProbingEnd = Field(
        default="",
        description="Why no further probe was started: the search expects nothing better, or tuning.maxProbes or "
        "tuning.maxGpuSeconds allows none. Empty until then.",
    )
    gpu_seconds_spent: Natural = Field(default=0, description="GPU-seconds that all probe runs of this job took.")
    oom_retries: Natural = Field(default=0, description="Relaunches after an out-of-memory.")
    disruptions: Natural = Field(default=0, description="Relaunches after preemption, eviction or loss of a node.")
    trained_samples: Natural = Field(
        default=0,
        description="Samples trained at the end of the newest ended attempt, with those it resumed from; "
        "0 if they could not be counted.",
    )
    total_samples: Natural = Field(
        default=0,
        description="Samples of the whole training, by the script's own schedule; 0 if the integration cannot know.",
    )
    own_batch: Natural = Field(
        default=0,
        description="Samples of an optimizer step by the script's own numbers, if they are not "
        "training.globalBatchSize and the integration replaced them; else 0.",
    )
    message: JobMessage = Field(default="", description="Current activity of the job, in one sentence.")

    @property
    def own_probes(self) -> tuple[ProbeStatus, ...]:
        """The probes that this job ran itself."""
        return tuple(probe for probe in self.probes if not probe.measured_by)


def load_status(data: Mapping[str, Any]) -> Status:
    """Parse the status, or raise SpecError: a status edited by hand may hold anything."""
    try:
        return Status.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecError(problems_of(error, Status, "status")) from None


def dump_status(status: Status) -> dict[str, Any]:
    """The status as plain values for the object, without empty fields."""
    dumped: dict[str, Any] = _without_empty_texts(status.model_dump(mode="json", by_alias=True, exclude_none=True))
    return dumped


def _without_empty_texts(value: Any) -> Any:
    """Some API servers take an empty text for a null, which no field may be; an omitted field reads back the same."""
    if isinstance(value, dict):
        return {name: _without_empty_texts(inner) for name, inner in value.items() if inner != ""}
    return [_without_empty_texts(item) for item in value] if isinstance(value, list) else value


def line(text: str, longest: int, keep_end: bool = False) -> str:
    """The text on one line, non-ASCII escaped, shortened at its end or at its beginning if too long."""
    part = text[-longest:] if keep_end else text[: 2 * longest]
    plain = " ".join(part.split()).encode("ascii", "backslashreplace").decode()
    plain = "".join(character if " " <= character <= "~" else "?" for character in plain)
    if len(plain) <= longest:
        return plain
    return f"...{plain[3 - longest :]}" if keep_end else shortened(plain, longest)


def sentence(text: str) -> str:
    """Cut to the length of a run's message."""
    return line(text, SENTENCE)


def explanation(text: str) -> str:
    """Cut to the length of a trace run's message."""
    return line(text, EXPLANATION)


def job_message(text: str) -> str:
    """Cut to the length of a job's or condition's message."""
    return line(text, JOB_MESSAGE)


@lru_cache(1024)
def to_text(seconds: float) -> str:
    """RFC 3339 in whole seconds, as metav1.Time."""
    bounded = int(min(max(seconds, 0.0), _LATEST)) if seconds == seconds else 0
    return datetime.fromtimestamp(bounded, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(1024)
def to_seconds(text: str | None) -> float | None:
    """Seconds since the epoch; None if the text is not a time."""
    try:
        read = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
        return (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


def natural(value: float) -> int:
    """A number in the status's format."""
    return int(min(max(value, 0.0), MAX_NATURAL))
