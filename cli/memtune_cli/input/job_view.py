"""JobView: the data that `status`, `watch` and `report` show, read from a job object. Pure; accepts any object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from memtune.api import Job, SpecError, load_job, reasons
from memtune.api.status import AttemptStatus, Condition, EmulationStatus, IntervalBytes, RunStatus, Status, to_seconds
from memtune.api.training import Shrink
from memtune.api.workload import to_space
from memtune.controller import budget
from memtune.controller.messages import samples, verdict_words
from memtune.controller.records import counted, ended_as, has_ended, newest_saved, of_training, read_status, restore
from memtune.controller.verdict import Verdict
from memtune.memory.prediction import Component, Interval
from memtune.planning.cost import per_million_tokens
from memtune.plans.plan import Plan
from memtune.units import amount
from memtune.wire.probe_pruning import Pruned

_OBSTACLES = ("Queued", "Stalled")


class RunPeak(NamedTuple):
    """The predicted peak of a plan, for drawing bars."""

    device: Interval
    components: tuple[Component, ...]


class Budget(NamedTuple):
    """Probes done, possible in total, and allowed by the job; likewise GPU-seconds."""

    done: int
    most: int
    allowed: int
    spent_seconds: int
    allowed_seconds: int


class Cost(NamedTuple):
    """The cost per million tokens of a plan, predicted or measured."""

    what: str
    plan: str
    tokens_per_second: int
    dollars: float


@dataclass(frozen=True)
class JobView:
    """One job. ``job`` is None if its spec is invalid; the status is shown anyway.

    ``state`` is the state directory of a `memtune run` job, empty for one on a cluster; ``is_left`` means that no
    `memtune run` is working on it.
    """

    name: str
    namespace: str
    status: Status
    job: Job | None = None
    state: str = ""
    is_left: bool = False

    @property
    def place(self) -> str:
        """Where the job is."""
        return "this machine" if self.state else self.namespace

    @property
    def title(self) -> str:
        """The display name of the job."""
        return self.name if self.state else f"{self.namespace}/{self.name}"

    @property
    def asked_as(self) -> str:
        """The command-line arguments that name the job."""
        return f"--state {self.state}" if self.state else self.name

    @property
    def is_over(self) -> bool:
        """Whether the job is finished."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_virtual(self) -> bool:
        """Whether the job runs on the virtual GPU, whose numbers are not those of real hardware."""
        return self.job is not None and self.job.spec.resources.device == "virtual"

    @property
    def is_emulated(self) -> bool:
        """Whether the job runs on an emulated GPU, which counts memory and computes nothing."""
        return self.job is not None and self.job.spec.resources.is_emulated

    @property
    def subject(self) -> str:
        """The job's model and GPUs in one line; empty if its spec is invalid."""
        if self.job is None:
            return ""
        resources, training = self.job.spec.resources, self.job.spec.training
        nodes = f"{resources.nodes} × " if resources.nodes > 1 else ""
        gpu = self.status.gpu_product or resources.gpu_product or ("virtual GPU" if self.is_virtual else "GPU")
        gpu = f"emulated {gpu}" if self.is_emulated else gpu
        size = f" of {self.amount(self._whole_bytes)}" if self.usable_bytes else ""
        if self.usable_bytes < self._whole_bytes:
            size += f" ({self.amount(self.usable_bytes)} are left)"
        batch = f"{training.global_batch_size} sequences of {training.sequence_length:,} tokens a step"
        return f"{nodes}{resources.gpus_per_node} × {gpu}{size}, {batch}"

    @property
    def shrink(self) -> Shrink | None:
        """The memory that a rehearsal removes."""
        return self.job.spec.resources.shrink if self.job else None

    @property
    def world(self) -> int:
        """The number of GPUs of one run."""
        return self.job.spec.resources.world if self.job else 1

    @property
    def headroom(self) -> float:
        """The share of HBM that a measured plan must leave free."""
        return self.job.spec.tuning.headroom_ratio if self.job else 0.0

    @cached_property
    def usable_bytes(self) -> int:
        """The memory of one GPU, last measured or else as used for the prediction; 0 if unknown."""
        measured = [run.peak_bytes.total for run in self.runs if run.peak_bytes and run.peak_bytes.total]
        predicted = self.status.prediction.usable_bytes if self.status.prediction else 0
        return measured[-1] if measured else predicted

    @property
    def _whole_bytes(self) -> int:
        """The memory of one GPU before a rehearsal takes some away."""
        is_shrunk = self.job is not None and self.job.spec.resources.shrink is not None
        measured = [run.peak_bytes.total for run in self.runs if run.peak_bytes] if is_shrunk else []
        return max([*measured, self.usable_bytes])

    def usable_by(self, run: RunStatus) -> int:
        """The memory of one GPU during a run, which may differ from later runs."""
        return (run.peak_bytes.total if run.peak_bytes else 0) or self.usable_bytes

    def amount(self, size_bytes: float) -> str:
        """Format an amount of memory in the unit used for the GPU."""
        return amount(size_bytes, self.usable_bytes or size_bytes)

    @property
    def runs(self) -> tuple[RunStatus, ...]:
        """All recorded runs, probes first."""
        return (*self.status.probes, *self.status.attempts)

    @property
    def trail(self) -> tuple[RunStatus, ...]:
        """All recorded runs and emulated probes."""
        return (*self.status.emulations, *self.runs)

    @property
    def live_run(self) -> RunStatus | None:
        """The newest active run."""
        return next((run for run in reversed(self.runs) if not has_ended(run)), None)

    @property
    def peak(self) -> RunPeak | None:
        """The prediction, if there is one."""
        prediction = self.status.prediction
        if prediction is None:
            return None
        parts = (Component(part.name.replace("-", " "), _interval(part)) for part in prediction.components)
        return RunPeak(_interval(prediction.device_bytes), tuple(parts))

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type, if it is true."""
        return next((each for each in self.status.conditions if (each.type, each.status) == (kind, "True")), None)

    @property
    def obstacle(self) -> Condition | None:
        """The condition that blocks the job, if any."""
        return next((found for kind in _OBSTACLES if (found := self.condition(kind))), None)

    @property
    def why(self) -> str:
        """Why the current plan was chosen, in the operator's words."""
        tuned = self.condition("Tuned")
        return tuned.message if tuned else ""

    def outcome(self, run: RunStatus) -> str:
        """The outcome of a run in a few words."""
        if not has_ended(run):
            return "running" if run.started_at else "starting"
        if run.verdict is None:
            return "stopped"
        if not ended_as(run, Verdict.SUCCEEDED):
            return verdict_words(run)
        if isinstance(run, AttemptStatus):
            if run.emulated:
                return "ran to its end, emulated"
            return "ended by its script" if self.ended_early(run) else "trained to its end"
        if not self.is_tight(run):
            return f"fits, {Pruned(run.pruned).words}" if run.pruned else "fits"
        if run.allocator_retries:
            return "too tight: the allocator had to retry"
        return f"too tight: {max(self.free_share(run) or 0, 0):.1%} free of {self.headroom:.0%}"

    def is_tight(self, run: RunStatus) -> bool:
        """Whether a successful probe left less free memory than a launch requires."""
        if isinstance(run, AttemptStatus) or not ended_as(run, Verdict.SUCCEEDED):
            return False
        free = self.free_share(run)
        return run.allocator_retries > 0 or (free is not None and free < self.headroom)

    def free_share(self, run: RunStatus) -> float | None:
        """The share of HBM that a measured run left free."""
        usable_bytes = self.usable_by(run)
        return 1 - run.peak_bytes.device / usable_bytes if run.peak_bytes and usable_bytes else None

    def is_winner(self, run: RunStatus) -> bool:
        """Whether a probe measured the plan that was chosen."""
        if isinstance(run, AttemptStatus) or run.measured_by or not self.why:
            return False
        if isinstance(run, EmulationStatus) != self._is_chosen_by_emulation:
            return False
        # Later attempts may have other plans, and the first may have been dropped from the status.
        attempts, plan = self.status.attempts, self.status.plan
        chosen = (
            [attempt.plan for attempt in attempts if attempt.number == 1] if attempts else [plan.name if plan else ""]
        )
        return run.plan in chosen and ended_as(run, Verdict.SUCCEEDED)

    @property
    def _is_chosen_by_emulation(self) -> bool:
        tuned = self.condition("Tuned")
        return tuned is not None and tuned.reason == reasons.EMULATED

    @cached_property
    def budget(self) -> Budget | None:
        """The progress of probing; None if there is no probing or the spec is invalid."""
        job = self.job
        if job is None or job.spec.tuning.mode != "Probe":
            return None
        live = sum(1 for probe in self.status.probes if not has_ended(probe))
        done = counted([probe for probe in self.status.own_probes if has_ended(probe)], to_space(job))
        spent, allowed = self.status.gpu_seconds_spent, job.max_gpu_seconds
        most_probes = job.spec.tuning.max_probes
        if self.why or self.is_over:
            return Budget(done, done, most_probes, spent, allowed)
        cost = self._probe_cost(job)
        pays = int(max(allowed - spent, 0) // cost) if cost else most_probes
        return Budget(done, min(most_probes, done + max(pays, live)), most_probes, spent, allowed)

    @cached_property
    def front(self) -> list[RunStatus]:
        """The Pareto front of the probes, fastest first."""
        by_number = {probe.number: probe for probe in self.status.probes}
        return [by_number[number] for number in self.status.front if number in by_number]

    def cost(self, tokens_per_second: int) -> float | None:
        """Dollars per million tokens at a speed; None without a price or speed."""
        price = self.status.gpu_hour_price
        return per_million_tokens(price, self.world, tokens_per_second) if price and self.job else None

    @property
    def costs(self) -> list[Cost]:
        """The predicted cost per million tokens, and that of each run that measured its speed."""
        prediction = self.status.prediction
        speeds = [("predicted", prediction.plan, prediction.tokens_per_second)] if prediction else []
        for run in self.runs:
            kind = "probe" if run.is_probe else "attempt"
            speeds.append((f"{kind} {run.number}", run.plan, run.tokens_per_second))
        return [Cost(*each, found) for each in speeds if (found := self.cost(each[-1])) is not None]

    @property
    def measured_plans(self) -> int:
        """The number of plans that probes measured; a failed probe does not count."""
        return len({probe.plan for probe in self.status.probes if ended_as(probe, Verdict.SUCCEEDED)})

    def _probe_cost(self, job: Job) -> float:
        """GPU-seconds of one more probe, as the operator estimates them; 0 if unknown."""
        prediction = self.status.prediction
        if prediction is None or not prediction.tokens_per_second:
            return 0.0
        try:
            plan = Plan.parse(prediction.plan)
        except ValueError:
            return 0.0
        training = job.spec.training
        seconds = training.global_batch_size * training.sequence_length / prediction.tokens_per_second
        return budget.probe_gpu_seconds(job, self.status.probes, plan, seconds)

    @property
    def checkpoint(self) -> str:
        """The checkpoint that the job would resume from, in words."""
        if self.job is None:
            return ""
        if self.job.spec.checkpoint is None:
            return "none: spec.checkpoint is not set, so that a run which died could not go on"
        path, saved = self.job.spec.checkpoint.path, newest_saved(self.status)
        resumed = [attempt for attempt in of_training(self.status) if attempt.resume != "no"]
        if saved is not None:
            form = f", as {saved.checkpoint_format}" if saved.checkpoint_format else ""
            return f"{saved.checkpoint_samples:,} samples in {path}, saved by attempt {saved.number}{form}"
        if resumed:
            return f"the newest complete one in {path}, from which attempt {resumed[-1].number} went on"
        has_told = self.is_over or (self.status.attempts and self.live_run is None)
        return f"in {path}; {'no report names a checkpoint' if has_told else 'none is known of until a run ends'}"

    def ended_early(self, run: RunStatus) -> bool:
        """Whether a run is the last finished attempt and left samples untrained."""
        is_newest = run in [attempt for attempt in self.status.attempts if has_ended(attempt)][-1:]
        return is_newest and 0 < self.status.trained_samples < self.status.total_samples

    @property
    def samples(self) -> str:
        """The progress of the last finished attempt, in words."""
        words = samples(self.status).removesuffix(" samples")
        ended = [attempt.number for attempt in self.status.attempts if has_ended(attempt)]
        return f"{words} when attempt {ended[-1]} ended" if words and ended else words

    @property
    def recoveries(self) -> str:
        """The number of relaunches and their limit."""
        most_ooms = f" of at most {self.job.spec.retry.max_oom_retries}" if self.job else ""
        most_disruptions = f" of at most {self.job.spec.retry.max_disruptions}" if self.job else ""
        return (
            f"{self.status.oom_retries}{most_ooms} after an out-of-memory, "
            f"{self.status.disruptions}{most_disruptions} after a disruption"
        )


def job_view_of(manifest: Mapping[str, Any]) -> JobView:
    """Build the view of a job object."""
    metadata = manifest.get("metadata") or {}
    found = manifest.get("status")
    status = read_status(found if isinstance(found, Mapping) else {})
    try:
        # The status is parsed separately and may be invalid.
        job = load_job({name: value for name, value in manifest.items() if name != "status"})
    except SpecError:
        return JobView(metadata.get("name", ""), metadata.get("namespace", "default"), status)
    return JobView(job.metadata.name, job.metadata.namespace, restore(job, status), job)


def error_ratio(run: RunStatus) -> float | None:
    """Measured over predicted memory, minus 1; None for a failed run, which did not reach its peak."""
    if not (run.peak_bytes and run.peak_bytes.device and run.predicted_bytes and ended_as(run, Verdict.SUCCEEDED)):
        return None
    return run.peak_bytes.device / run.predicted_bytes - 1


def measured_bytes(run: RunStatus) -> int:
    """The device memory that a run used, or held and requested when it ran out; 0 without a report."""
    return run.demanded_bytes or (run.peak_bytes.device if run.peak_bytes else 0)


def run_seconds(run: RunStatus, now: float) -> float | None:
    """How long a run has been training; None if it never started."""
    start, end = to_seconds(run.started_at), to_seconds(run.ended_at)
    return None if start is None else max((now if end is None else end) - start, 0.0)


def _interval(found: IntervalBytes) -> Interval:
    return Interval(found.lower, found.expected, found.upper)
