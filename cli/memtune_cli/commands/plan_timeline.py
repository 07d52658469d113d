"""`memtune plan --timeline`: one step of the chosen plan, replayed on a trace of the job's model."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from memtune.memory.replay import Replayer, numerics_of
from memtune.memory.traced_model import TracedModel
from memtune.model.count import parameters
from memtune.plans.plan import Plan
from memtune.units import gib
from memtune.wire.trace import Trace, TraceError
from memtune_cli.commands import timeline
from memtune_cli.errors import InputError
from memtune_cli.input.prediction_case import PredictionCase
from memtune_cli.input.tracing import read_trace, trace_into

# Architecture facts count weights like the model's code, except a few that belong to no layer.
_ALIKE = 0.02


def draw(path: Path, case: PredictionCase, plan: Plan, trace_file: str | None) -> str:
    """Draw the step and return a sentence about it."""
    trace = read_trace(trace_file) if trace_file else _traced(case, plan)
    if trace_file:
        _refuse_another_model(case, trace, trace_file)
    workload = case.workload
    replayer = Replayer(trace, workload.nodes, workload.gpus_per_node, without_reducer=workload.without_reducer)
    try:
        replayed, step = replayer.replay(plan), replayer.timeline(plan)
    except TraceError as error:
        raise InputError(f"--timeline: {error}") from None
    timeline.draw(path, f"{case.name}: {trace.model}, {plan}", step, "--timeline")
    return (
        f"{path} shows a step of {plan}, replayed on a trace of {trace.model}; the allocator reserves "
        f"{gib(replayed.peak.reserved)} there, and CUDA's context and NCCL come on top"
    )


def _traced(case: PredictionCase, plan: Plan) -> Trace:
    if isinstance(case.workload.model, TracedModel):
        return case.workload.model.trace
    if case.job.spec.model.hf_config is None or case.workload.adapter is not None:
        why = "its model has an adapter" if case.workload.adapter else "its model is given without hfConfig"
        raise InputError(
            f"--timeline: the job's model cannot be traced from the job alone, since {why}; trace your code with "
            "memtune trace MODULE:FACTORY, and give the file as --trace FILE"
        )
    with TemporaryDirectory() as folder:
        config, output = Path(folder) / "config.json", Path(folder) / "trace.json"
        config.write_text(json.dumps(case.job.spec.model.hf_config), encoding="utf-8")
        numerics, length = [numerics_of(plan)], case.workload.sequence_length
        trace_into(output, str(config), length, numerics, told_as="spec.model.hfConfig")
        return read_trace(str(output))


def _refuse_another_model(case: PredictionCase, trace: Trace, file: str) -> None:
    """Refuse a trace of another model than the job's."""
    workload = case.workload
    if trace.sequence_length != workload.sequence_length:
        raise InputError(
            f"--trace: {file} was traced with {trace.sequence_length} tokens a row, and the job has "
            f"{workload.sequence_length}; trace again with --sequence-length {workload.sequence_length}"
        )
    model = workload.model
    described = model.trace.total if isinstance(model, TracedModel) else parameters(model).total
    if workload.adapter is None and abs(trace.total / described - 1) > _ALIKE:
        raise InputError(
            f"--trace: {file} has {trace.total:,} parameters ({trace.model}), and the job describes {described:,}; "
            "give a trace of the job's model"
        )
