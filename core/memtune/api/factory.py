"""Tracing of a job's model factory: the tracer's arguments, and the key under which the trace is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memtune.api.job import Job
from memtune.api.workload import to_space
from memtune.memory.replay.replay_case import numerics_of
from memtune.wire.names import short_hash
from memtune.wire.trace import NUMERICS
from memtune.wire.trace_message import VERSION

# Two sizes determine every size, and the smallest are the quickest.
ROWS = 2
TIME_LIMIT_SECONDS = 300
_KEY_CHARACTERS = 32


def tracing_words(job: Job) -> list[str]:
    """The tracer's command-line arguments."""
    model, training = job.spec.model, job.spec.training
    return [
        model.factory or "",
        *("--arguments", json.dumps(model.factory_arguments or {}, sort_keys=True)),
        *("--batch", str(ROWS), "--sequence-length", str(training.sequence_length)),
        *("--numerics", *_numerics(job)),
        # The engine casts around the loss; with another integration the script casts as its factory's loss does.
        *(["--loss-autocast"] if job.spec.integration == "sdk" or job.spec.template is None else []),
        *("--time-limit", str(TIME_LIMIT_SECONDS)),
    ]


def trace_key(job: Job, template: Mapping[str, Any]) -> str:
    """The storage key of a factory's trace: a hash of all that may change it; ``template`` is the pod's part."""
    runner = job.spec.runner
    parts = [VERSION, runner.image, runner.python, template, *tracing_words(job)]
    return short_hash(json.dumps(parts, sort_keys=True), _KEY_CHARACTERS)


def _numerics(job: Job) -> list[str]:
    """The numerics that plans of the job may use, including those further down the ladder."""
    fixed = job.spec.tuning.fixed_plan
    found = {numerics_of(plan) for plan in ([fixed] if fixed else to_space(job).bare_plans())}
    if "autocast" in found or ("full" in found and "precision" in job.spec.retry.consent):
        # The rung below DDP casts weights; the rung below fp32 may do either.
        found |= {"half"} if "autocast" in found else {"half", "autocast"}
    return [each for each in NUMERICS if each in found]
