"""The GPU-second budget of probes (tuning.maxGpuSeconds), from container start to end. Waiting is free."""

from __future__ import annotations

from collections.abc import Sequence

from memtune.api.job import Job
from memtune.api.status import ProbeStatus
from memtune.api.workload import to_space
from memtune.controller.context import Context
from memtune.controller.observation import PodObservation, RunObservation
from memtune.controller.records import OUT_OF_MEMORY, ended_as, has_ended, plan_of
from memtune.controller.verdict import Verdict
from memtune.memory.prediction import Prediction
from memtune.plans.plan import Plan
from memtune.wire.probe_pruning import STEADY_STEPS

# From a container's start to its first step: imports, rendezvous, building and sharding the model.
STARTUP_SECONDS = 30.0
# The share of the budget that one probe may take if it neither ends nor reports.
_LONGEST_SHARE = 0.5
# Terminating a pod takes a moment, which also counts.
ENDING_SECONDS = 5.0
# A runner that ends its own ranks waits for neither API server nor kubelet. A live operator acts before it.
_RUNNER_ENDING_SECONDS = 2
_RUNNER_PATIENCE_SECONDS = 3
# In seconds: a clock that is further off is wrong.
_LONGEST = float(2**32)
_SHORTENED = 2
_TIMED = (Verdict.SUCCEEDED, *OUT_OF_MEMORY)


def gpu_seconds(run: RunObservation, gpus_per_pod: int, now: float, longest: float = _LONGEST) -> int:
    """GPU-seconds of a run until now: from each container's start to its end, or ``longest`` if unknown."""
    return round(sum(_seconds(pod, now, longest) for pod in run.pods) * gpus_per_pod)


def _seconds(pod: PodObservation, now: float, longest: float) -> float:
    if pod.started_at_seconds is None:
        return 0.0
    end = min(now, pod.started_at_seconds + longest) if pod.finished_at_seconds is None else pod.finished_at_seconds
    return min(max(end - pod.started_at_seconds, 0.0), _LONGEST)


def is_overdue(job: Job, run: RunObservation, now: float) -> bool:
    """Whether a probe has taken more than any single probe may."""
    taken = gpu_seconds(run, job.spec.resources.gpus_per_pod, now)
    return taken > most_probe_seconds(job) * job.spec.resources.world


def most_probe_seconds(job: Job) -> float:
    """The longest time for which a probe may run without ending or reporting."""
    return _LONGEST_SHARE * job.max_gpu_seconds / job.spec.resources.world


def unwatched_probe_seconds(job: Job) -> float:
    """The longest that a probe holds its GPUs, even without an operator: its runner ends it."""
    return most_probe_seconds(job) + _RUNNER_PATIENCE_SECONDS + ENDING_SECONDS


def new_probe_seconds(context: Context) -> int:
    """How long a probe that starts now runs before it ends itself, so that the budget holds without an operator."""
    going = [probe for probe in context.status.probes if not has_ended(probe)]
    known = _measured_gpu_seconds(context.status.probes)
    # Running probes may take as much as the longest before them; if there was none, all share alike.
    older = [probe for probe in going if probe.created and known]
    taken = sum(max(_taken(context, probe), known if probe in older else 0) for probe in going)
    left = context.job.max_gpu_seconds - context.status.gpu_seconds_spent - taken
    share = left / (max(len(going) - len(older), 1) * context.world) - _RUNNER_ENDING_SECONDS
    return max(int(min(share, most_probe_seconds(context.job) + _RUNNER_PATIENCE_SECONDS)), 1)


def running_seconds(context: Context) -> int:
    """GPU-seconds that running probes have taken so far."""
    return sum(_taken(context, probe) for probe in context.status.probes if not has_ended(probe))


def _taken(context: Context, probe: ProbeStatus) -> int:
    run = RunObservation(context.pods(probe))
    return gpu_seconds(run, context.job.spec.resources.gpus_per_pod, context.now)


def running(context: Context) -> list[ProbeStatus]:
    """The probes that hold GPUs, also those with one pod that waits for the others."""
    return [probe for probe in context.status.probes if not has_ended(probe) and _gpus(context, probe)]


def _gpus(context: Context, probe: ProbeStatus) -> int:
    """The number of GPUs that a probe's wrapped containers hold."""
    held = [
        pod for pod in context.pods(probe) if pod.started_at_seconds is not None and pod.finished_at_seconds is None
    ]
    return len(held) * context.job.spec.resources.gpus_per_pod


def is_spent(context: Context) -> bool:
    """Whether running probes must end now to keep the budget."""
    return bool(running(context)) and _left(context) <= 0


def running_probes_seconds_left(context: Context) -> float:
    """How long running probes may go on: limited by the budget, and by the first probe to reach its own limit."""
    probes, longest = running(context), most_probe_seconds(context.job) * context.world
    own = ((longest - _taken(context, probe)) / _gpus(context, probe) for probe in probes)
    return min(_left(context) / sum(_gpus(context, probe) for probe in probes), *own)


def _left(context: Context) -> float:
    """GPU-seconds that may still be taken before everything must end."""
    reserve = ENDING_SECONDS * sum(_gpus(context, probe) for probe in running(context))
    return context.job.max_gpu_seconds - reserve - context.status.gpu_seconds_spent - running_seconds(context)


def expected_gpu_seconds(context: Context, plan: Plan, prediction: Prediction) -> float:
    """Expected GPU-seconds of a plan's probe."""
    return probe_gpu_seconds(context.job, context.status.probes, plan, prediction.step_seconds.expected)


def probe_gpu_seconds(job: Job, probes: Sequence[ProbeStatus], plan: Plan, step_seconds: float) -> float:
    """GPU-seconds of one more probe: as measured by earlier probes, else from its predicted step time."""
    world = job.spec.resources.world
    if known := _measured_gpu_seconds(probes):
        return float(known) + ENDING_SECONDS * world
    # A shortened step has fewer micro-batches; the optimizer's part is small in comparison.
    share = min(plan.accumulation, _SHORTENED) / plan.accumulation
    steps = min(job.spec.tuning.probe_steps, STEADY_STEPS) * step_seconds * share
    return (STARTUP_SECONDS + steps + ENDING_SECONDS) * world


def _measured_gpu_seconds(probes: Sequence[ProbeStatus]) -> int:
    """The most GPU-seconds that a probe took. Hung probes are ignored: they predict nothing."""
    return max((probe.gpu_seconds for probe in probes if ended_as(probe, *_TIMED)), default=0)


def pays_for(context: Context, plan: Plan, prediction: Prediction) -> int:
    """How many probes the whole budget pays for, as estimated before the first."""
    return int(context.job.max_gpu_seconds // max(expected_gpu_seconds(context, plan, prediction), 1.0))


def allows(context: Context, plan: Plan, prediction: Prediction) -> bool:
    """Whether one more probe stays within the budget, with running probes counted at what they are expected to take."""
    needed = expected_gpu_seconds(context, plan, prediction)
    running = [probe for probe in context.status.probes if not has_ended(probe)]
    known = sum(max(needed, expected_gpu_seconds(context, plan_of(probe), prediction)) for probe in running)
    committed = max(known, float(running_seconds(context)))
    spent = context.status.gpu_seconds_spent + _inherited(context, plan)
    return spent + committed + needed <= context.job.max_gpu_seconds


def _inherited(context: Context, plan: Plan) -> int:
    """GPU seconds of earlier jobs on the same question; 0 for a plan of theirs, which may be probed once more."""
    space = to_space(context.job)
    probes = context.current_probes
    earlier = [each for each in probes if each.measured_by and space.allows(plan_of(each))]
    is_repeated = any(probe.plan == str(plan) for probe in earlier)
    return 0 if is_repeated else sum(probe.gpu_seconds for probe in earlier)


def shortfall(context: Context, plan: Plan, prediction: Prediction) -> str:
    """The message for a probe that the budget does not allow."""
    spent = context.status.gpu_seconds_spent + _inherited(context, plan)
    left = max(context.job.max_gpu_seconds - spent, 0)
    needed = f"pay for no further probe of about {expected_gpu_seconds(context, plan, prediction):,.0f}"
    return f"the {left:,} GPU-seconds left in tuning.maxGpuSeconds {needed}"
