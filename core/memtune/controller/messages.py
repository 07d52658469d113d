"""Messages for people: one line for each thing that happened."""

from __future__ import annotations

from typing import Literal

from memtune.api import reasons
from memtune.api.job import Job
from memtune.api.status import AttemptStatus, EmulationStatus, RunStatus, Status
from memtune.api.training import Shrink
from memtune.controller.records import ended_as, of_training
from memtune.controller.verdict import ENDED_WELL, Verdict
from memtune.memory.prediction import Prediction, percent
from memtune.planning.ladder import OutOfMemoryKind
from memtune.plans.plan import Plan
from memtune.units import amount, counted, gib, unit_of
from memtune.wire.probe_pruning import Pruned

_SHOWN_COMPONENTS = 4
VERDICT_WORDS = {
    Verdict.SUCCEEDED: "succeeded",
    Verdict.DEVICE_OOM: "ran out of GPU memory",
    Verdict.HOST_OOM: "ran out of host memory",
    Verdict.DISRUPTED: "was taken away",
    Verdict.UNSCHEDULABLE: "could not be scheduled as a whole",
    Verdict.QUEUED: "went back to the queue",
    Verdict.IMAGE_ERROR: "could not start from its image",
    Verdict.USER_ERROR: "failed",
    Verdict.PLAN_NOT_APPLIED: "did not apply its plan",
    Verdict.HUNG: "hung",
}


def run_words(record: RunStatus) -> str:
    """The name of a run in words."""
    emulated = "emulated " if record.emulated else ""
    of_job = f" of job {record.measured_by}" if record.measured_by else ""
    kind = "probe" if record.is_probe else "attempt"
    return f"{emulated}{kind} {record.number}{of_job} ({record.plan})"


def trains(record: AttemptStatus, shrink: Shrink | None = None, lost: str = "") -> str:
    """Describes an attempt and why it was started; ``lost`` is why it cannot resume from an existing checkpoint."""
    rung = f", by {record.rung}" if record.rung else ""
    loss = f"; resources.shrink takes {shrink.by} of the GPU's memory after step {shrink.after_step}" if shrink else ""
    does = "runs emulated" if record.emulated else "trains"
    what = f"attempt {record.number} {does} on {record.plan}"
    return f"{what}{rung}{_from(record)}{lost}{host_request_words(record.host_request_bytes)}{loss}"


def host_request_words(host_request_bytes: int) -> str:
    """The host memory that a run needs beyond its template's request."""
    return f", with {gib(host_request_bytes)} of host memory" if host_request_bytes else ""


def _from(record: AttemptStatus) -> str:
    if record.resume == "no":
        return ", from the start" if record.number > 1 else ""
    converted = ", converted first" if record.resume == "convert" else ""
    samples = f" of {record.resumed_samples:,} samples" if record.resumed_samples else ""
    return f", from the newest checkpoint{samples}{converted}"


def inherited(record: RunStatus) -> str:
    """The checkpoint that a run resumed from, though its own job had left none."""
    if not isinstance(record, AttemptStatus) or record.resume != "no" or not record.resumed_samples:
        return ""
    return f" (it went on from {record.resumed_samples:,} samples that another job saved in checkpoint.path)"


def trained(status: Status) -> str:
    """How far a successful attempt got; called the end only if it is known to be all of the training."""
    done, total = status.trained_samples, status.total_samples
    if not done:
        return "has ended well"
    if not total:
        return f"has ended well after {done:,} samples"
    if done < total:
        return f"has ended well after {samples(status)}, where its script ended the training"
    beyond = f" where the training has {total:,}" if done > total else ""
    return f"has trained to its end, {samples(status)}{beyond}"


def samples(status: Status) -> str:
    """Trained samples of the newest ended attempt, and the total; empty if they could not be counted."""
    done, total = status.trained_samples, status.total_samples
    # A script may train on a sample several times in one pass, or again after it was resumed.
    of = f" of {total:,}" if done <= total else ""
    return f"{done:,}{of} samples" if done else ""


def otherwise_trained(status: Status) -> str:
    """Says which part of the training was not made as its plan says; empty if all of it was."""
    *before, last = of_training(status)
    otherwise = [each for each in before if ended_as(each, Verdict.PLAN_NOT_APPLIED) and each.trained]
    return f"of it, {ended(otherwise[-1])}" if otherwise and last.resumed_samples else ""


def replaced_batch(status: Status, job: Job | None) -> str:
    """Says that the script's own numbers give another batch than the job's; empty if they do not.

    The job is None where its spec cannot be read.
    """
    if not status.own_batch:
        return ""
    own = f"training.globalBatchSize, the script's own numbers make it {status.own_batch:,}"
    if job is None:
        return f"an optimizer step takes {own}"
    size = job.spec.training.global_batch_size
    ends = "after the training" if size > status.own_batch else "before the training"
    return (
        f"an optimizer step takes the {size:,} samples of {own}; a learning-rate schedule computed from those ends "
        f"{ends}: set globalBatchSize {status.own_batch}, or compute it from $MEMTUNE_GLOBAL_BATCH"
    )


def verdict_words(record: RunStatus) -> str:
    """The verdict of a run in a few words."""
    words = VERDICT_WORDS[Verdict(record.verdict)]
    if record.out_of_memory == OutOfMemoryKind.SAVING.value:
        return f"{words} during a save"
    if record.out_of_memory == OutOfMemoryKind.EVALUATION.value:
        batch = record.evaluation_batch if isinstance(record, AttemptStatus) else 0
        return f"{words} during an evaluation{f' in batches of {batch:,}' if batch else ''}"
    return f"{words} in {record.phase}" if record.phase else words


def ended(record: RunStatus) -> str:
    """How a run ended."""
    if record.verdict is None:
        return f"{run_words(record)} was stopped: {record.message}"
    what = f"{run_words(record)} {verdict_words(record)}{inherited(record)}"
    if ended_as(record, Verdict.SUCCEEDED) and record.peak_bytes:
        return "; ".join(filter(None, (f"{what}: {measured(record)}", warning(record))))
    return f"{what}: {record.message}" if record.message else what


def warning(record: RunStatus) -> str:
    """Advice for the script of a successful run; empty if there is none."""
    return "" if record.message in (None, ENDED_WELL) else record.message


def ended_event(record: RunStatus) -> tuple[Literal["Normal", "Warning"], str, str, str]:
    """The event of a run's end; advice for the script of a successful run has its own event."""
    is_good = record.verdict is None or ended_as(record, Verdict.SUCCEEDED)
    reason = reasons.PROBE_ENDED if record.is_probe else reasons.RUN_ENDED
    is_warned = ended_as(record, Verdict.SUCCEEDED) and warning(record)
    apart = record.model_copy(update={"message": None}) if is_warned else record
    return "Normal" if is_good else "Warning", reason, ended(apart), record.name


def measured(record: RunStatus) -> str:
    """A run's measurement beside the prediction."""
    peaks = record.peak_bytes
    if peaks is None:
        return "it reported no memory"
    retries = f", {record.allocator_retries} allocation retries" if record.allocator_retries else ""
    total = peaks.total
    predicted = f" (predicted {amount(record.predicted_bytes, total)})" if record.predicted_bytes else ""
    verb = "emulated" if record.emulated else "measured"
    # A rehearsal may take memory away after the peak.
    of = f"of {amount(total, total)}" if peaks.device <= total else f"before the GPU had only {amount(total, total)}"
    measured = f"{verb} {amount(peaks.device, total)}{predicted} {of}"
    speed = f", {record.tokens_per_second:,} tokens/s"
    if record.emulated:
        seconds = record.step_seconds
        speed = f", {seconds:.3g} s a step by its operations" if seconds else ", speed not measured"
    sizes = record.made_up_sizes if isinstance(record, EmulationStatus) else 0
    made_up = f", {counted(sizes, 'size')} of tensors made up" if sizes else ""
    shorter = ", without the longest sequences" if record.length_covered is False else ""
    return f"{measured}{speed}{retries}{made_up}{shorter}{ended_early(record)}"


def ended_early(record: RunStatus) -> str:
    """Why a probe made fewer steps than planned; empty if it made all."""
    return f", ended early: {Pruned(record.pruned).words}" if record.pruned else ""


def predicted_memory(prediction: Prediction, usable_bytes: int, headroom: float) -> str:
    """The predicted peak of a run; where that may be too much, also the needed memory, which decides whether the run
    fits.
    """
    unit, needed = unit_of(usable_bytes), prediction.needed
    takes = f"predicted to take {unit.number(prediction.device.expected)} of {amount(usable_bytes, usable_bytes)}"
    if prediction.fits(usable_bytes, headroom):
        return takes
    between = f"{unit.number(needed.lower)} to {unit.number(needed.upper)}"
    likely = percent(prediction.fit_probability(usable_bytes, headroom))
    return f"{takes} and to need {unit.number(needed.expected)} ({between}): it fits with a probability of {likely}%"


def predicted(plan: Plan, prediction: Prediction, usable_bytes: int, device_kind: str, earlier_jobs: int = 0) -> str:
    """A prediction in one line, without a speed for a virtual GPU, which is as fast as the CPUs behind it."""
    device, unit = prediction.device, unit_of(usable_bytes)
    largest = sorted(prediction.components, key=lambda part: -part.bytes.expected)[:_SHOWN_COMPONENTS]
    parts = ", ".join(f"{part.name} {unit.number(part.bytes.expected)}" for part in largest)
    between = f"{unit.number(device.lower)} to {unit.number(device.upper)}"
    speed = "" if device_kind == "virtual" else f"; {prediction.tokens_per_second.expected:,.0f} tokens/s"
    learned = f"; outside the allocator as {counted(earlier_jobs, 'earlier job')} measured" if earlier_jobs else ""
    return (
        f"{plan} is predicted to take {amount(device.expected, usable_bytes)} ({between}) "
        f"of {amount(usable_bytes, usable_bytes)}, "
        f"most in {prediction.peak_phase}: {parts}{speed}{learned}"
    )


def script_remedies(integration: str, kind: OutOfMemoryKind, is_small: bool = False) -> list[str]:
    """Advice for a script whose evaluation or save ran out of memory.

    ``is_small`` says that the batches of the evaluation cannot be smaller.
    """
    if kind is OutOfMemoryKind.SAVING:
        return ["let the script make no copies on the GPU of what it saves, but move each tensor to the host first"]
    if kind is not OutOfMemoryKind.EVALUATION:
        return []
    if integration == "hf-trainer":
        return ["let the evaluation keep no logits: prediction_loss_only, or preprocess_logits_for_metrics"]
    if is_small:
        return ["let the script keep no outputs of its evaluation on the GPU"]
    if integration == "lightning":
        return [
            "let validation_step keep no outputs on the GPU; under Fabric, give setup_dataloaders the evaluation's "
            "loader beside that of the training, or let the script evaluate in batches of $MEMTUNE_EVALUATION_BATCH"
        ]
    if integration == "accelerate":
        return [
            "give accelerator.prepare the evaluation's loader, whose batches become smaller then, or let the script "
            "evaluate in batches of $MEMTUNE_EVALUATION_BATCH; keep no outputs on the GPU"
        ]
    return ["let the script evaluate in batches of $MEMTUNE_EVALUATION_BATCH, and keep no outputs on the GPU"]
