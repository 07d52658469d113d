"""``Watch``: combines what the hooks see of one process: steps, batches, durations, memory."""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from memtune.wire.report import Applied, Device, Phase
from memtune_runner.checkpoints.loading import CheckpointLoad
from memtune_runner.device.statistics import Statistics, is_full
from memtune_runner.rank import applied_knobs, bad_input, library_step, phases
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.batch_size import BatchSizes
from memtune_runner.rank.memory_counters import Reading
from memtune_runner.rank.probe import Probe
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.applied_plan import AppliedPlan
from memtune_runner.watch.batch_counts import BatchCounts
from memtune_runner.watch.engines import learns
from memtune_runner.watch.evaluation_peak import EvaluationPeak
from memtune_runner.watch.hang import HangRule
from memtune_runner.watch.highest_readings import MemoryRecord
from memtune_runner.watch.out_of_memories import OutOfMemories
from memtune_runner.watch.plan_check import PlanCheck
from memtune_runner.watch.saves import Saves
from memtune_runner.watch.schedule_length import ScheduleLength
from memtune_runner.watch.step_duration import StepDuration
from memtune_runner.watch.steps import StepCounter
from memtune_runner.watch.training_loop import TrainingLoop
from memtune_runner.watch.unseen_steps import UnseenSteps

# Reading the allocator's counters takes 0.1 ms, and writing them as much again.
READING_PERIOD_SECONDS = 1.0


class Watch:
    """Everything known about this process's training. Hooks call its methods; the report reads it.

    ``busy`` is set within the outermost forward pass and within backward passes, where module calls add nothing.
    ``evaluates`` is set within an evaluated forward pass, where only a training one would.
    """

    def __init__(
        self,
        settings: Settings,
        rank: int,
        probe: Probe | None,
        hang: HangRule,
        load: CheckpointLoad | None = None,
        must_train: bool = True,
    ) -> None:
        self.settings = settings
        self.load = load
        self.rank = rank
        self.probe = probe
        self.hang = hang
        self.statistics: Statistics | None = None
        self.when_read: Callable[[Reading], None] | None = None
        self.when_ran_out: Callable[[Reading], None] | None = None
        self.when_stepped: Callable[[float, int], None] | None = None
        self.counter, self.batch_counts, self.step_duration, self.record = (
            StepCounter(),
            BatchCounts(),
            StepDuration(),
            MemoryRecord(),
        )
        self.training_loop = TrainingLoop()
        self.busy = False
        self.evaluates = False
        self.applied_plan = AppliedPlan(settings, self.batch_counts)
        self.out_of_memories = OutOfMemories(settings, rank)
        self.saves = Saves(settings)
        self.schedule_length = ScheduleLength(settings, self.counter)
        self.evaluation_covered = False
        self._batch_sizes = BatchSizes(settings.plan.micro_batch, settings.sequence_length)
        self._plan_check = PlanCheck(settings)
        self._unseen_steps = UnseenSteps(settings, must_train)
        self._evaluation_peak = EvaluationPeak(settings, self.read, self.record.memory)
        self._engine_depth = 0
        self._numbers = itertools.count()
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._optimizer_began: float | None = None
        self._disturbed = False
        self._awaits_gradients = False
        self._last_reading = float("-inf")

    def attach(self, statistics: Statistics) -> None:
        """Use these statistics from now on."""
        self.statistics = statistics
        statistics.when_out_of_memory(self._memory_ran_out)
        if self.settings.report_path is not None:
            statistics.record_sites()

    def forward_began(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Handle an outermost module call; return whether it is the model, whose end must be reported, too."""
        if library_step.goes_on() and not torch.is_grad_enabled():
            phases.enter(Phase.FORWARD)  # a reference model or generation: neither evaluation nor training
            return False
        if not learns(module):
            return False
        is_training_mode = module.training or library_step.goes_on()
        trains = torch.is_grad_enabled() and (is_training_mode or self.batch_counts.trains_in_evaluation_mode)
        if self.evaluates and not trains:
            return False  # a part of a batch that is already evaluated
        if self.probe is not None:
            self.probe.forward_begins(is_evaluation=not trains)
        self.note_saves()
        size = self._batch_sizes.of(args, kwargs, trains)
        samples = size.rows // library_step.rows_of_sample() if size is not None else 0
        self.out_of_memories.pass_began()
        if not torch.is_grad_enabled():
            self.batch_counts.forward_without_gradients_began()
        elif not is_training_mode and size is not None:
            self.batch_counts.undecided_forward_began(samples, size.tokens)
        if not trains:
            self._evaluation_peak.forward_begins()
            self._evaluation_began()
            self.batch_counts.evaluation_began(samples)
            return True
        error = bad_input.first_error()
        if error is not None:
            raise error  # the script caught it, and would go on for nothing
        self._plan_check.forward_begins(self.counter.steps, self.applied)
        phases.enter(Phase.FORWARD)
        self._training_began(module)
        if is_training_mode:
            self.batch_counts.forward_began(samples, size.tokens if size is not None else 0)
        self.busy = True
        return True

    def forward_left(self) -> None:
        """Handle the return from the model, with or without an output."""
        self.busy = self.evaluates = False

    def forward_ended(self) -> None:
        """Handle the model's output; computing the loss still belongs to the forward phase."""
        self.out_of_memories.pass_ended()
        if phases.current() is Phase.FORWARD:
            self.batch_counts.forward_ended()
            self.applied_plan.forward_ended()
        elif phases.current() is Phase.EVALUATION:
            if self.out_of_memories.unrecovered_in is Phase.EVALUATION:
                self.out_of_memories.script_went_on()  # with a smaller batch, or the next one
            self.evaluation_covered |= self.counter.steps > 0
            self._evaluation_peak.forward_ended(self.batch_counts)

    def block_checkpointed(self) -> None:
        """Count a block under activation checkpointing, except when the backward pass recomputes it."""
        if phases.current() is Phase.FORWARD and not applied_knobs.is_in_loss():
            self.batch_counts.block_checkpointed()

    def backward_began(self) -> None:
        """Handle the start of the outermost backward pass."""
        self._check_resumed()
        self._pass_begins()
        phases.enter(Phase.BACKWARD)
        self._awaits_gradients = False
        self.counter.backward_began()
        self.batch_counts.backward_began()
        self.busy = True

    def gradients_asked_for(self) -> None:
        """Handle ``torch.autograd.grad`` on weights, with whose result an optimizer may step.

        Only the first request after a forward pass counts: a script may request each weight's or task's gradients
        separately, or inspect some after a backward pass. Without a training forward pass, requests during an
        evaluation are part of it.
        """
        if phases.current() is Phase.EVALUATION and not self._awaits_gradients:
            return
        self._check_resumed()
        phases.enter(Phase.BACKWARD)
        if self._awaits_gradients or not self.applied_plan.has_model:  # without a module, no hook sees a forward pass
            self._pass_begins()
            self.counter.backward_began()
            self.batch_counts.gradients_asked_for()
        self._awaits_gradients = False

    def optimizer_began(self, optimizer: torch.optim.Optimizer) -> None:
        """Handle the start of an optimizer's step; before any backward pass an engine is only creating its states."""
        if not self.batch_counts.micro_steps_now:
            return
        phases.enter(Phase.OPTIMIZER_STEP)
        self.applied_plan.optimizer_began(optimizer)
        if not self._engine_depth:
            self._optimizer_began = self._time_in_order()

    def optimizer_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step is over. Within an engine's step or a scaler's it is part of theirs."""
        if not self._engine_depth:
            self._step_ended(self.counter.optimizer_stepped(), optimizer)

    def engine_began(self) -> None:
        """Handle the start of an engine's or loss scaler's step; optimizers within it do not count."""
        self._engine_depth += 1
        self._optimizer_began = self._time_in_order()

    def engine_ended(self, steps: int, skipped: int) -> None:
        """Handle the end of an engine's step, by the engine's own count."""
        self._engine_depth -= 1
        self._step_ended(self.counter.engine_stepped(steps, skipped))

    def scaler_ended(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        """A loss scaler has let this optimizer step, or not."""
        self._engine_depth -= 1
        if not self._engine_depth:  # else DeepSpeed uses the scaler, and counts for both
            self._step_ended(self.counter.optimizer_stepped(skipped), optimizer)

    def note_saves(self) -> None:
        """Note whether anything was saved since the last call."""
        self._disturbed |= self.saves.are_new(self.counter.steps)

    def read(self) -> Reading | None:
        """Read the counters now; the report keeps the peaks."""
        reading = self.statistics.read() if self.statistics else None
        if reading is not None:
            self.record.add(reading)
        return reading

    def applied(self) -> Applied:
        """Return what forward passes, backward passes and the optimizer have shown of the plan so far."""
        return self.applied_plan.shown(self.statistics)

    @property
    def evaluation_warning(self) -> str:
        """The warning that a probe peaked in its evaluation; else empty."""
        return self._evaluation_peak.warning

    def device_is_full(self) -> bool:
        """Whether a library may have found no room for its handle."""
        return self.statistics is not None and is_full(self.statistics)

    def _pass_begins(self) -> None:
        """Raise BadInputError if something trains the model whose steps are not seen."""
        counter = self.counter
        steps = counter.steps + counter.skipped
        self._unseen_steps.backward_begins(counter.backward_passes, steps, self.applied_plan.whole_model)

    def _check_resumed(self) -> None:
        """Raise BadInputError if a training starts over instead of resuming. Rank 0 may load for all ranks."""
        if self.load is not None and not self.load.is_done and self.rank == 0:
            raise BadInputError(self.load.missing)

    def _training_began(self, module: torch.nn.Module) -> None:
        now = time.monotonic()
        if not self.counter.steps and not self.batch_counts.micro_steps_now:
            self.hang.note_progress(now)
        self.step_duration.training_began(now)
        self._awaits_gradients = True
        if self.statistics is not None:
            self.statistics.forward_began(self.batch_counts.micro_steps_now)
        self.applied_plan.training_began(module)

    def _evaluation_began(self) -> None:
        phases.enter(Phase.EVALUATION)
        self.evaluates = self._disturbed = True

    def _time_in_order(self) -> float | None:
        """Return the time when the device has finished its work; None outside probes, which alone may wait for it."""
        if self.probe is None or self.statistics is None:
            return None
        self.statistics.synchronize()
        return time.monotonic()

    def _step_ended(self, is_new: bool, optimizer: torch.optim.Optimizer | None = None) -> None:
        ended = self._time_in_order()
        if ended is not None and self._optimizer_began is not None and self.batch_counts.micro_steps_now:
            self.step_duration.optimizer_took(ended - self._optimizer_began)
        self._optimizer_began = None
        if not is_new:
            self.batch_counts.stepped_on_same_gradients(self._number_of(optimizer))
            return
        now, micro_steps = time.monotonic(), self.batch_counts.micro_steps_now
        self.out_of_memories.script_went_on()
        self.saves.stepped()
        self.training_loop.stepped()
        self.note_saves()
        self.step_duration.stepped(now, micro_steps, self.batch_counts.tokens_now, self._disturbed)
        if self.when_stepped is not None and self.step_duration.last_seconds is not None:
            self.when_stepped(self.step_duration.last_seconds, self.batch_counts.tokens_now)
        self.batch_counts.stepped(_world(), self._number_of(optimizer))
        self.hang.note_progress(now)
        if self.statistics is not None:
            self.statistics.step_ended(micro_steps, self._disturbed)
        self._disturbed = False
        if self.probe is not None:
            self.probe.stepped(self.counter.steps, self.counter.skipped)
            self._step_measured(self.probe)
        self._read_now_and_then(now)

    def _is_in_loop(self) -> bool:
        """Whether the script is within its training loop now: an evaluation, a save or the next batch may be, too."""
        if phases.current() in (Phase.FORWARD, Phase.BACKWARD):
            return True
        # A run that had nothing left to train when it started was never in its loop.
        return self.counter.steps > 0 and not self.training_loop.is_left()

    def _number_of(self, optimizer: torch.optim.Optimizer | None) -> int | None:
        if optimizer is not None and optimizer not in self._optimizers:
            self._optimizers[optimizer] = next(self._numbers)
        return self._optimizers[optimizer] if optimizer is not None else None

    def _step_measured(self, probe: Probe) -> None:
        """Report the last step to the probe, which may end early because of it."""
        self.read()
        # An emulated GPU computes nothing, so its durations say nothing about a real one.
        is_timed = self.settings.device is not Device.EMULATED
        seconds, tokens = (is_timed and self.step_duration.last_step(self.settings.plan.accumulation)) or (0.0, 0.0)
        speed = tokens * probe.world / seconds if seconds else 0.0
        probe.measured(seconds, speed, self.record.memory().peak_device_bytes)
        if probe.ended_early is not None and self.rank == 0:
            why = f"its plan is {probe.pruned.words}" if probe.pruned else probe.ended_early.words
            print(f"memtune: the probe ends after {self.counter.steps} steps: {why}", file=sys.stderr, flush=True)

    def _read_now_and_then(self, now: float) -> None:
        if now - self._last_reading < READING_PERIOD_SECONDS:
            return
        self._last_reading = now
        reading = self.read()
        if reading is not None and self.when_read is not None:
            self.when_read(reading)

    def _memory_ran_out(self, requested_bytes: int) -> None:
        if self.statistics is None:
            return
        reading = self.read()
        if reading is not None and self.when_ran_out is not None:
            self.when_ran_out(reading)
        # Before the first backward pass, the mode alone does not tell that the script trains in it.
        is_first_pass = (
            phases.current() is Phase.EVALUATION and self.batch_counts.is_undecided and not self.counter.backward_passes
        )
        phase = Phase.FORWARD if is_first_pass else phases.current()
        in_loop = is_first_pass or self._is_in_loop()
        self.out_of_memories.happened(phase, requested_bytes, reading, self.statistics, in_loop)


def _world() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
