"""The context around a worker's script: installs the hooks, removes them, and always leaves a report."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from memtune.allocator import AllocatorSettings
from memtune.units import MIB
from memtune.wire import environment
from memtune.wire.report import Device, Ending
from memtune_runner import integrations
from memtune_runner.checkpoints import save_barrier, whole_model
from memtune_runner.checkpoints.loading import CheckpointLoad
from memtune_runner.checkpoints.save_barrier import PassedCallWatch
from memtune_runner.command import called_launchers
from memtune_runner.emulated import saves
from memtune_runner.emulated.rank import EmulatedRank
from memtune_runner.rank import (
    applied_knobs,
    bad_input,
    deepspeed_on_cpu,
    library_step,
    phases,
    probe,
    progress,
    script_warnings,
    stacks,
    training_length,
)
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.failure_causes import ProcessEnd, chain, of_bad_input, of_exception
from memtune_runner.rank.hang_grace import HangGrace
from memtune_runner.rank.imports import ImportWatch
from memtune_runner.rank.patches import Patches
from memtune_runner.rank.probe import Probe, ProbeFinished
from memtune_runner.rank.progress import Progress, Trained
from memtune_runner.rank.ranks import Rank, own_directory, write_rank_report
from memtune_runner.rank.settings import Settings, SettingsError
from memtune_runner.rank.training_length import TrainingLength
from memtune_runner.watch import rank_report
from memtune_runner.watch.hang import GRACE_PHASES, HangLimits, HangRule, Watchdog

if TYPE_CHECKING:
    from memtune_runner.watch.watch import Watch


@contextmanager
def watching(
    settings: Settings, rank: Rank, must_train: bool = True, hang_limits: HangLimits | None = None
) -> Iterator[None]:
    """Watch the code within the block and write this rank's report at its end, however it ends.

    All exceptions propagate except the one that ends a probe. A script that ends without having trained leaves the
    block by ``SystemExit``, because that is a failure. A process that need not train, since another one of its rank
    may, reports only if it trained. Forked children never report: their end is not the rank's.
    """
    owner = os.getpid()
    worker = _Worker(settings, rank, must_train, hang_limits or HangLimits())
    try:
        worker.begin()
        yield
    except ProbeFinished:
        pass
    except BaseException as error:
        if os.getpid() != owner:
            raise
        failure = worker.failure_of(error)
        if failure.exit_code:
            worker.end(failure)
            raise
    if os.getpid() != owner:
        return
    exit_code = worker.end_well()
    if exit_code:
        raise SystemExit(exit_code)


class _Worker:
    """Everything set up for one worker, step by step as the script imports its libraries, and taken down at the end."""

    def __init__(self, settings: Settings, rank: Rank, must_train: bool, hang_limits: HangLimits) -> None:
        self._settings, self._rank, self._must_train = settings, rank, must_train
        self._hang_limits, self._hang = hang_limits, HangRule(hang_limits)
        # The watchdog's and the script's thread may both end the run: the first one reports, the other follows.
        self._telling = threading.Lock()
        self._hung: ProcessEnd | None = None
        self._has_ended = False
        self._probe = Probe.of(settings, rank.world)
        self._watch: Watch | None = None
        self._load = CheckpointLoad.of(settings)
        self._length = TrainingLength()
        self._emulated = EmulatedRank(rank.world)
        self._imports, self._patches = ImportWatch(), Patches()

    def begin(self) -> None:
        bad_input.reset()
        phases.reset()
        library_step.reset()
        applied_knobs.reset()
        training_length.reset()
        save_barrier.reset()
        probe.begin(self._probe)
        progress.begin(self._progress)
        script_warnings.reset()
        self._imports.install()
        if self._load is not None:
            self._load.watch()
            self._patches.when_undone(self._load.stop)
            self._imports.when_imported("safetensors", self._hook_safetensors_reading)
        if self._settings.device is Device.VIRTUAL:
            # Registered before any import: DeepSpeed may be what imports torch, and then its own import is under way.
            deepspeed_on_cpu.choose_cpu()
            self._imports.when_imported("deepspeed", deepspeed_on_cpu.adapt)
        # Registered before any import as well: it may be what imports torch.
        self._imports.when_imported("safetensors.torch", self._hook_safetensors)
        self._imports.when_imported("torch", self._hook_torch)
        called_launchers.install(self._imports, self._patches, self._rank)
        self._length = integrations.install(
            self._settings, self._probe, self._imports, self._patches, self._trained, self._counted
        )

    def _trained(self, steps: int | None = None) -> Trained:
        """Return how far this process's weights are trained; ``steps`` is a library's own count from the start.

        The samples are counted from the first step on, before a script of another batch is found out. Where they
        cannot be counted, each step is taken as a full one, also those that a loss scaler skipped. So is each step that
        a library has from elsewhere, as from a checkpoint of the script's own; what this process trained before the
        library began to count is left out in the same way.
        """
        settings = self._settings
        is_loaded = self._load is not None and self._load.is_done
        resumed = Trained(settings.resumed_step, settings.resume_samples) if is_loaded else Trained(0, 0)
        made, discarded = _steps(self._watch) if self._watch else 0, self._length.discarded_samples
        if steps is None:
            steps = resumed.steps + made
        here = (self._counted() - discarded) * self._rank.world
        # A library that discards samples does not say how many steps they were.
        elsewhere = 0 if discarded else (steps - resumed.steps - made) * settings.global_batch
        samples = here + elsewhere if here > 0 else 0
        if samples <= 0:
            samples = (steps - resumed.steps) * settings.global_batch
        return Trained(steps, resumed.samples + samples)

    def _counted(self) -> int:
        """Return the samples that this rank has trained in this process; 0 if unknown."""
        return (self._watch.batch_counts.trained_samples if self._watch else None) or 0

    def _progress(self) -> Progress:
        if self._watch is None:
            return Progress()
        counter = self._watch.counter
        steps = _steps(self._watch)
        full, counted = steps * self._settings.global_batch, self._counted() * self._rank.world
        samples = min(full, counted) if counted else full
        return Progress(counter.backward_passes, steps, samples)

    def failure_of(self, error: BaseException) -> ProcessEnd:
        """The cause of death according to the error, on a device that is as full as the script left it."""
        first = bad_input.first_error()  # what the script dies of after it has caught one is no cause
        if first is not None or isinstance(error, (SettingsError, BadInputError)):
            return of_bad_input(first or error)
        if self._watch is None:
            return of_exception(error)
        failure = of_exception(error, self._watch.device_is_full)
        if failure.ending is Ending.ERROR and isinstance(error, SystemExit):
            failure = rank_report.out_of_memory(self._watch) or failure
        if failure.ending is Ending.ERROR and (
            self._length.is_over or self._watch.training_loop.is_left_by(chain(error))
        ):
            return failure._replace(message=f"after its training had ended: {failure.message}")
        return failure

    def end(self, failure: ProcessEnd) -> None:
        """Write the report and take everything down."""
        with self._telling:
            if self._hung is not None:
                os._exit(self._hung.exit_code)
            self._leave_report(failure)
            self._has_ended = True
        save_barrier.announce_end()
        self._imports.remove()
        self._patches.undo()

    def end_well(self) -> int:
        """End without an error of the script's; the exit code says whether that was enough."""
        error = bad_input.first_error()
        if not self._must_train and error is None and not (self._watch and self._watch.counter.steps):
            self._imports.remove()
            self._patches.undo()
            return 0
        if error is not None:
            failure = of_bad_input(error)
        else:
            failure = rank_report.ended_well(self._watch, self._settings, self._rank, self._load, self._length)
        self.end(failure)
        return failure.exit_code

    def _leave_report(self, failure: ProcessEnd) -> None:
        self._emulated.tell()
        directory = own_directory(os.environ)
        if directory is not None:
            report = rank_report.report_of(self._settings, self._rank, self._watch, failure, self._load, self._length)
            write_rank_report(directory, self._rank, report)

    def _hook_torch(self, _: ModuleType) -> None:
        # Import these only now: they need torch.
        from memtune_runner.watch import hooks
        from memtune_runner.watch.watch import Watch

        watch = self._watch = Watch(
            self._settings, self._rank.rank, self._probe, self._hang, self._load, self._must_train
        )
        self._attach_device(watch)
        hooks.hook_torch(watch, self._patches)
        for name, hook in (
            ("torch.utils.checkpoint", lambda each: hooks.hook_checkpointing(each, watch, self._patches)),
            (
                "deepspeed.runtime.activation_checkpointing.checkpointing",
                lambda each: hooks.hook_checkpointing(each, watch, self._patches),
            ),
            ("torch.distributed.checkpoint", lambda each: hooks.hook_distributed_checkpoints(each, self._patches)),
            ("deepspeed.runtime.engine", lambda each: hooks.hook_deepspeed(each, watch, self._patches)),
        ):
            self._imports.when_imported(name, hook)
        self._publish(watch)
        self._start_watchdog(watch)
        is_met = self._settings.checkpoint_path is not None or whole_model.is_gathered(self._settings)
        hooks.hook_left_groups(self._patches)
        if self._rank.world > 1 and is_met:
            hooks.hook_process_group(self._patches)
            lookout = PassedCallWatch(self._hang_limits.period_seconds)
            lookout.start()
            self._patches.when_undone(lookout.stop)

    def _hook_safetensors(self, module: ModuleType) -> None:
        from memtune_runner.watch import hooks

        hooks.hook_safetensors(module, self._patches)

    def _hook_safetensors_reading(self, module: ModuleType) -> None:
        from memtune_runner.watch import hooks

        assert self._load is not None
        hooks.hook_safetensors_reading(module, self._load, self._patches)

    def _publish(self, watch: Watch) -> None:
        directory, port = own_directory(os.environ), self._settings.metrics_port
        if directory is not None and port:
            from memtune_runner.watch.publish import publish

            publish(watch, self._rank, directory, port)

    def _attach_device(self, watch: Watch) -> None:
        from memtune_runner.device.statistics import CudaStatistics, VirtualStatistics
        from memtune_runner.virtual.gpu import VirtualGpu

        settings = self._settings
        if settings.device is Device.CUDA:
            watch.attach(CudaStatistics(settings.gpu_memory_bytes, settings.memory_share, self._rank.local_rank))
            return
        if settings.device is Device.EMULATED:
            watch.attach(self._emulated.attach(sys.modules["torch"], settings))
            self._patches.when_undone(self._emulated.detach)
            if settings.is_probe:
                saves.leave_holes(sys.modules["torch"], self._imports, self._patches)
            return
        assert settings.gpu_memory_bytes is not None  # settings reject a virtual GPU without a size
        budget_bytes = int(settings.gpu_memory_bytes * (settings.memory_share or 1.0))
        gpu = VirtualGpu(budget_bytes, _allocator_settings(settings), settings.budget_from_step)
        gpu.__enter__()
        self._patches.when_undone(lambda: gpu.__exit__(None, None, None))
        watch.attach(VirtualStatistics(gpu))

    def _start_watchdog(self, watch: Watch) -> None:
        directory = os.environ.get(environment.NODE_DIRECTORY) if self._rank.world > 1 else None
        hang_grace = HangGrace(Path(directory) if directory else None)

        def silence(now: float) -> float | None:
            phase = phases.current()
            if phase in GRACE_PHASES:
                hang_grace.ask()
            is_grace_asked = hang_grace.is_asked(self._hang_limits.grace_seconds)
            return self._hang.silence(
                now, phase, watch.step_duration.usual_seconds(), is_grace_asked, watch.training_loop.is_left
            )

        watchdog = Watchdog(silence, self._end_hung, self._hang_limits.period_seconds)
        watchdog.start()
        self._patches.when_undone(watchdog.stop)

    def _end_hung(self, silent_seconds: float) -> None:
        failure = rank_report.hung(silent_seconds)
        # The first rank to exit ends all; until then the launcher lets the others print their stacks. The timer fires
        # even if the code below fails or blocks, and no exception would reach a blocked main thread.
        end = threading.Timer(self._hang_limits.period_seconds, os._exit, (failure.exit_code,))
        end.start()
        with self._telling:
            if self._has_ended:
                end.cancel()
                return
            self._hung = failure
            print(f"memtune: rank {self._rank.rank} hangs: {failure.message}", file=sys.stderr, flush=True)
            stacks.show()
            self._leave_report(failure)


def _steps(watch: Watch) -> int:
    """The steps behind the weights; of optimizers that take turns those of one, for they may train on the same."""
    return (
        watch.batch_counts.most_steps if watch.batch_counts.takes_turns else watch.counter.steps + watch.counter.skipped
    )


def _allocator_settings(settings: Settings) -> AllocatorSettings:
    split_mib = settings.plan.max_split_size_mib
    return AllocatorSettings(settings.plan.expandable_segments, split_mib * MIB if split_mib else None)
