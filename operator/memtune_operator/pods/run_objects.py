"""The Kubernetes objects of any run: train, probe, emulated or trace. Pure."""

from __future__ import annotations

from memtune.api import Job
from memtune.wire.run import Run, TraceRun
from memtune_operator.pods.emulated_pod import emulated_pod
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.manifests import objects, pods
from memtune_operator.pods.trace_pod import trace_pod


def run_objects(job: Job, run: Run | TraceRun, runner_image: str, is_restricted: bool = False) -> list[Manifest]:
    """All objects of a run, in order of creation."""
    if isinstance(run, TraceRun) or _is_emulated(job, run):
        return run_pods(job, run, runner_image, is_restricted)
    return objects(job, run, runner_image, is_restricted)


def run_pods(job: Job, run: Run | TraceRun, runner_image: str, is_restricted: bool = False) -> list[Manifest]:
    """The pods of a run: one per node, or a single one for a trace or emulated run."""
    if isinstance(run, TraceRun):
        return [trace_pod(job, run, runner_image, is_restricted)]
    if _is_emulated(job, run):
        return [emulated_pod(job, run, runner_image, is_restricted)]
    return pods(job, run, runner_image, is_restricted)


def _is_emulated(job: Job, run: Run) -> bool:
    return run.gpu is not None or job.spec.resources.is_emulated
