"""The environment variables that configure the runner in one pod of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from memtune.api import Job, architecture_of, gpu_of
from memtune.api.training import Shrink
from memtune.units import parse_bytes
from memtune.wire import environment
from memtune.wire.names import pod_name, probe_saves, run_name
from memtune.wire.run import Run, RunKind
from memtune_operator.pods import names, wrapped_container

RENDEZVOUS_PORT = 29400
# The pods of a run may start far apart if only some nodes have the image.
RENDEZVOUS_SECONDS = 1800
# The default grace period, and the part of it that is reserved for the report.
_GRACE_SECONDS = 30
_REPORT_SECONDS = 5


def of_pod(job: Job, run: Run, index: int, termination_message_path: str) -> dict[str, str]:
    """The variables of the pod with this index. Variables that do not apply are empty."""
    found = {
        **_of_run(job, run),
        **_of_plan(job, run),
        **_of_training(job),
        **_of_place(job, run, index),
        **_of_files(job, run),
        environment.TERMINATION_MESSAGE_PATH: termination_message_path,
    }
    missing = environment.REFERABLE.difference(found, environment.FOUND_BY_LAUNCHER)
    return {**found, **dict.fromkeys(sorted(missing), "")}


def of_trace(job: Job, referred: Iterable[str]) -> dict[str, str]:
    """The variables that a trace pod's variables and mounts refer to; most are empty, since there is no plan.

    The others stay unset, as in a process without MemTune.
    """
    known = {environment.JOB: job.metadata.name, **_of_training(job), **_of_files(job)}
    return {name: known.get(name, "") for name in sorted(environment.REFERABLE.intersection(referred))}


def _of_run(job: Job, run: Run) -> dict[str, str]:
    restarted = {environment.RESTARTED_AT: str(run.restarted_at)} if run.restarted_at else {}
    is_probe = _is_probe(run)
    if is_probe:
        seconds = {environment.PROBE_SECONDS: str(run.seconds)} if run.seconds else {}
        own = {environment.PROBE_STEPS: str(job.spec.tuning.probe_steps), **seconds, **_of_target(run)}
    else:
        own = {environment.ATTEMPT: str(run.number), **restarted}
    return {
        environment.JOB: job.metadata.name,
        environment.JOB_UID: job.metadata.uid,
        environment.RUN: run_name(job.metadata.name, run.kind, run.number),
        # The runner treats an emulated run as a probe.
        environment.RUN_KIND: str(RunKind.PROBE if is_probe else run.kind),
        **own,
        **({environment.EVALUATION_BATCH: str(run.evaluation_batch)} if run.evaluation_batch else {}),
        **({environment.SHARDED_SAVE: "1"} if run.sharded_save else {}),
        environment.INTEGRATION: job.spec.integration,
    }


def _of_target(run: Run) -> dict[str, str]:
    tokens_per_second, device_bytes = run.target
    speed = {environment.PROBE_TARGET_TOKENS: str(tokens_per_second)} if tokens_per_second else {}
    return {**speed, **({environment.PROBE_TARGET_BYTES: str(device_bytes)} if device_bytes else {})}


def _of_plan(job: Job, run: Run) -> dict[str, str]:
    is_deepspeed = run.plan.sharding.backend == "deepspeed"
    return {
        environment.PLAN: json.dumps(run.plan.to_json(), sort_keys=True, separators=(",", ":")),
        environment.MICRO_BATCH: str(run.plan.micro_batch),
        environment.ACCUMULATION: str(run.plan.accumulation),
        environment.GLOBAL_ACCUMULATION: str(run.plan.accumulation * job.spec.resources.world),
        **({environment.DEEPSPEED_CONFIG: wrapped_container.DEEPSPEED_PATH} if is_deepspeed else {}),
    }


def _of_training(job: Job) -> dict[str, str]:
    training = job.spec.training
    # The built-in trainer builds the described model, also when the user's template starts it.
    described = job.spec.model.factory is None
    facts = {environment.ARCHITECTURE: json.dumps(asdict(architecture_of(job)))} if described else {}
    return {
        environment.GLOBAL_BATCH: str(training.global_batch_size),
        environment.SEQUENCE_LENGTH: str(training.sequence_length),
        **facts,
    }


def _of_place(job: Job, run: Run, index: int) -> dict[str, str]:
    resources, name = job.spec.resources, job.metadata.name
    host = _first_host(job, run)
    service = f"{run_name(name, run.kind, run.number)}.{job.metadata.namespace}.svc"
    emulated = run.gpu or (gpu_of(job) if resources.is_emulated else None)
    memory = parse_bytes(resources.gpu_memory) if resources.gpu_memory else 0
    own = memory * resources.memory_ratio
    if emulated:
        # An emulated GPU already has the size of the job's share.
        memory = own = emulated.usable_bytes
    return {
        environment.NODES: str(resources.nodes),
        environment.NODE_RANK: str(index),
        environment.GPUS_PER_NODE: str(resources.gpus_per_node),
        environment.RENDEZVOUS: f"{host}.{service}:{RENDEZVOUS_PORT}",
        environment.RENDEZVOUS_SECONDS: str(RENDEZVOUS_SECONDS),
        environment.GRACE_SECONDS: str(_grace_seconds(job)),
        environment.DEVICE: "emulated" if run.gpu else resources.device,
        **({environment.GPU_NAME: emulated.name} if emulated else {}),
        **({environment.GPU_MEMORY_BYTES: str(memory)} if memory else {}),
        **(
            {environment.MEMORY_SHARE: f"{resources.memory_ratio:g}"} if resources.memory_share and not emulated else {}
        ),
        **({environment.NVME_PATH: resources.nvme_path} if resources.nvme_path else {}),
        **({environment.SHRINK: _left_after(resources.shrink, own)} if resources.shrink and not run.gpu else {}),
        environment.METRICS_PORT: "" if run.gpu else str(wrapped_container.METRICS_PORT),
        # The image may have no home directory for building the emulated driver.
        **({environment.EMULATED_CACHE: wrapped_container.EMULATED_PATH} if emulated else {}),
    }


def _left_after(shrink: Shrink, memory_bytes: float) -> str:
    """The memory of a virtual or emulated GPU from a given step on."""
    return f"{shrink.after_step}:{int(memory_bytes * (1 - shrink.ratio))}"


def _first_host(job: Job, run: Run) -> str:
    """The host name of the pod that hosts the rendezvous."""
    if job.spec.launcher == "JobSet":
        return f"{names.job_set_name(job.metadata.name, run.kind, run.number)}-{names.REPLICATED_JOB}-0-0"
    return pod_name(job.metadata.name, run.kind, run.number, 0)


def _is_probe(run: Run) -> bool:
    return run.kind in (RunKind.PROBE, RunKind.EMULATE)


def _of_files(job: Job, run: Run | None = None) -> dict[str, str]:
    files = {
        environment.REPORT_PATH: wrapped_container.REPORT_PATH,
        environment.REPORT_LOG_TAIL: "1" if job.spec.report_log_tail else "0",
    }
    if job.spec.checkpoint:
        path = job.spec.checkpoint.path
        if run is not None and _is_probe(run):
            path = probe_saves(path, run_name(job.metadata.name, run.kind, run.number))
        files[environment.CHECKPOINT_PATH] = path
    return files


def _grace_seconds(job: Job) -> int:
    """How long ranks may take to end when the pod is deleted, leaving time to write the report."""
    spec = (job.spec.template or {}).get("spec") or {}
    granted = spec.get("terminationGracePeriodSeconds")
    return max((granted if isinstance(granted, int) else _GRACE_SECONDS) - _REPORT_SECONDS, 1)
