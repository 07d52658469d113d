"""Builds one rank's report, from which the launcher makes the run's report."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memtune.units import MIB
from memtune.wire.report import EXIT_CODES, Device, Ending, Memory, Report
from memtune_runner import checkpoints
from memtune_runner.checkpoints.loading import CheckpointLoad
from memtune_runner.rank import phases, script_warnings
from memtune_runner.rank.driver import driver_version
from memtune_runner.rank.failure_causes import ProcessEnd
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import Settings
from memtune_runner.rank.training_length import TrainingLength
from memtune_runner.watch.unmet_requests import kept_memory, larger_evaluation
from memtune_runner.watch.unseen_steps import unseen_steps

if TYPE_CHECKING:
    from memtune_runner.watch.watch import Watch  # needs torch, which the script may never import


def hung(silent_seconds: float) -> ProcessEnd:
    """The failure of a run that hangs."""
    message = f"no optimizer step ended for {silent_seconds:.0f} s; the stack traces of all threads are in the log"
    return ProcessEnd(Ending.HUNG, EXIT_CODES[Ending.HUNG], message)


def out_of_memory(watch: Watch) -> ProcessEnd | None:
    """The failure of a script that caught an out-of-memory in its training loop and trained no more, else None."""
    ran_out = watch.out_of_memories.last
    if ran_out is None or watch.out_of_memories.unrecovered_in is None:
        return None
    message = (
        "the script caught an out-of-memory and made no optimizer step after it: "
        f"{ran_out.requested_bytes / MIB:,.1f} MiB could not be allocated in phase {ran_out.phase}"
    )
    return ProcessEnd(Ending.DEVICE_OOM, EXIT_CODES[Ending.DEVICE_OOM], message)


def ended_well(
    watch: Watch | None, settings: Settings, rank: Rank, load: CheckpointLoad | None, length: TrainingLength
) -> ProcessEnd:
    """The result of a script that ends without an error: success, unless it never trained, or not to its end."""
    ran_out = out_of_memory(watch) if watch is not None else None
    if ran_out is not None:
        return ran_out
    message = _never_stepped(watch, rank, load, length) or ("" if settings.is_probe else length.unfinished)
    ending = Ending.BAD_INPUT if message else Ending.SUCCEEDED
    return ProcessEnd(ending, EXIT_CODES.get(ending, 0), message)


def report_of(
    settings: Settings,
    rank: Rank,
    watch: Watch | None,
    failure: ProcessEnd,
    load: CheckpointLoad | None = None,
    length: TrainingLength | None = None,
) -> Report:
    """Return one rank's report. ``watch`` is None if the script never imported torch."""
    saved = checkpoints.newest_known(settings)
    report = Report(
        ending=failure.ending,
        exit_code=failure.exit_code,
        run=settings.run or None,
        plan=str(settings.plan),
        rank=rank.rank,
        world=rank.world,
        attempt=settings.attempt,
        resumed_samples=_resumed(load, rank),
        checkpoint_samples=saved.manifest.samples if saved else None,
        checkpoint_format=saved.manifest.format.value if saved else None,
        phase=None if failure.ending is Ending.SUCCEEDED else phases.current(),
        device=settings.device,
        message=failure.message,
        bad_command=failure.is_bad_command or None,
        warnings=script_warnings.collected(),
    )
    if watch is None:
        return report
    length = length or TrainingLength()
    samples = {} if settings.is_probe else _samples(watch, rank, load, length)
    if length.is_known_at_end and failure.ending is not Ending.SUCCEEDED:
        samples.pop("total_samples", None)
    return _measured(replace(report, own_batch=length.own_batch, **samples), watch, length)


def _samples(watch: Watch, rank: Rank, load: CheckpointLoad | None, length: TrainingLength) -> dict[str, Any]:
    """Return this rank's share of the samples trained so far, including those resumed from, and of the total."""
    counted, resumed = watch.batch_counts.trained_samples, length.resumed_samples
    if counted is None:
        return {}
    if resumed is None:
        share, rest = divmod(load.samples if load else 0, rank.world)
        resumed = share + (0 if rank.rank else rest)
    trained = resumed + counted - length.discarded_samples
    total = length.total_samples(trained)
    if watch.schedule_length.made_again:
        total = None  # an integration takes all passes for the training
    return {"trained_samples": trained, "total_samples": total}


def _resumed(load: CheckpointLoad | None, rank: Rank) -> int | None:
    """Return the samples resumed from. Rank 0 may have loaded the checkpoint for the other ranks."""
    return load.samples if load is not None and (load.is_done or rank.rank == 0) else None


def _never_stepped(watch: Watch | None, rank: Rank, load: CheckpointLoad | None, length: TrainingLength) -> str:
    if watch is not None and watch.counter.steps:
        return ""
    if watch is not None and watch.counter.skipped:
        return f"the loss scaler skipped every one of {watch.counter.skipped} optimizer steps: the gradients overflow"
    if load is not None:
        # The checkpoint may have been the end of the training, and rank 0 may have loaded it for all.
        return "" if load.is_done or rank.rank else load.unused
    if watch is not None and watch.counter.backward_passes:
        return length.unfinished or f"the script ended after {unseen_steps(watch.counter.backward_passes)}"
    return "the script ended without a single optimizer step; MemTune measures and launches scripts that train"


def _measured(report: Report, watch: Watch, length: TrainingLength) -> Report:
    """Add everything that the watch measured."""
    watch.note_saves()
    accumulation = watch.settings.plan.accumulation
    seconds, tokens = watch.step_duration.step_seconds(accumulation), watch.step_duration.tokens_per_step(accumulation)
    if watch.settings.device is Device.EMULATED:
        # It computes nothing, so its durations say nothing about a real one.
        seconds, tokens = watch.statistics.counted_seconds() if watch.statistics else None, None
    if report.ending is Ending.SUCCEEDED:  # else the last lines of the log are what the script failed of
        if again := length.trained_twice or watch.schedule_length.made_again:
            script_warnings.withdraw("repeated rows")
            script_warnings.warn(again, once="trained twice")
        for once, text in (
            ("evaluation", watch.evaluation_warning),
            ("evaluation batch", larger_evaluation(watch.settings, watch.batch_counts.evaluation_batch)),
            ("shrink", kept_memory(watch.settings, watch.settings.resumed_step + watch.counter.steps)),
        ):
            if text:
                script_warnings.warn(text, once=once)
    # A save outside of checkpoint.path is reported as such.
    is_relaunched = report.ending in (Ending.SUCCEEDED, Ending.DEVICE_OOM)
    if is_relaunched and watch.saves.unusable and not script_warnings.is_issued("outside"):
        script_warnings.warn(watch.saves.unusable, once="untold saves")
    measured = replace(
        report,
        warnings=script_warnings.collected(),
        steps=watch.counter.steps,
        skipped_steps=watch.counter.skipped,
        # The watchdog's thread reports a hang; its current device is GPU 0, and querying it might block.
        memory=watch.record.memory() if report.ending is Ending.HUNG else _memory(watch),
        applied=watch.applied(),
        step_seconds=seconds,
        tokens_per_second=tokens * (report.world or 1) / seconds if seconds and tokens else None,
        torch=str(sys.modules["torch"].__version__)[:32],
        driver=driver_version() if watch.settings.device is Device.CUDA else None,
        **_of_probe(watch),
    )
    ran_out = watch.out_of_memories.last
    if report.ending is not Ending.DEVICE_OOM or ran_out is None:
        return measured
    return replace(measured, phase=ran_out.phase, largest=ran_out.largest)


def _memory(watch: Watch) -> Memory:
    watch.read()
    memory = watch.record.memory()
    if watch.statistics is None or memory.peak_reserved_bytes is None:
        return memory
    ran_out = watch.out_of_memories.last
    failed_bytes = ran_out.requested_bytes if ran_out else None
    largest_bytes = watch.statistics.largest_free_block_bytes()
    return replace(memory, largest_free_block_bytes=largest_bytes, failed_request_bytes=failed_bytes)


def _of_probe(watch: Watch) -> dict[str, Any]:
    """Return what a probe saw of the later run, and its steps; an attempt does not report these."""
    settings, probe = watch.settings, watch.probe
    if probe is None:
        return {}
    whole = settings.plan.micro_batch * settings.sequence_length
    return {
        "length_covered": (watch.batch_counts.largest_tokens or 0) >= whole,
        "evaluation_covered": watch.evaluation_covered,
        "save_covered": watch.saves.is_covered,
        "pruned": probe.pruned,
        "measured_steps": probe.measured_steps,
    }
