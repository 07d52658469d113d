"""`memtune emulate JOB.yaml`: runs the job's command under one or more plans on an emulated GPU of its product."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memtune.api import Job
from memtune.api.allowed_plans import outside
from memtune.gpus.driver_overhead import expected_overhead
from memtune.gpus.gpu import chip_of
from memtune.memory.host_memory import emulated_host_bytes
from memtune.plans.plan import Plan
from memtune_cli.commands.run import install_runner
from memtune_cli.errors import InputError
from memtune_cli.input.emulated_forks import EmulatedForks
from memtune_cli.input.emulated_job import EmulatedRun, EmulationRefusedError, prepare
from memtune_cli.input.emulated_runs import Room, run_all
from memtune_cli.input.job_file import read_case, shown_name
from memtune_cli.input.prediction_case import PredictionCase
from memtune_cli.views import json_output
from memtune_cli.views.emulate_page import page_of_job
from memtune_cli.views.screen import stdout_screen
from memtune_runner.emulated import exit_codes


class PlanRefusedError(InputError):
    """The job does not allow the requested plan."""


def run(arguments: argparse.Namespace) -> int:
    """Emulate and show predicted beside emulated memory; return 0 if every run completed."""
    try:
        case = _case(arguments)
        plans = _plans(arguments, case)
        with TemporaryDirectory() as temporary:
            results = _emulated(case, plans, arguments, Path(temporary))
    except EmulationRefusedError as error:
        return _refused(error, error.code)
    except PlanRefusedError as error:
        return _refused(error, exit_codes.PLAN_REFUSED)
    document, screen = _document(case, results), stdout_screen()
    is_table = arguments.format == "table"
    print(
        screen.plain("\n".join(page_of_job(screen, case, document)))
        if is_table
        else json_output.dump(document, arguments.format)
    )
    # Last, so that a failure to draw loses nothing else.
    drawn = _draw(arguments, case, results[0]) if arguments.timeline else ""
    if drawn and is_table:
        print(screen.plain(drawn))
    return next((code for each in results if (code := exit_codes.OF_OUTCOME[each["outcome"]])), 0)


def _refused(error: InputError, code: int) -> int:
    print(f"memtune: {error}", file=sys.stderr)
    return code


def _case(arguments: argparse.Namespace) -> PredictionCase:
    """The job with its device set to emulated."""
    file = arguments.words[0]
    case = read_case(file, arguments.gpu)
    if case.workload.gpu.guessed:
        raise EmulationRefusedError(
            f"{shown_name(file)}: spec.resources: the GPU to emulate is not named; set gpuProduct, or give --gpu "
            "h100-80gb",
            exit_codes.UNKNOWN_GPU,
        )
    resources: dict[str, Any] = {"device": "emulated", "shrink": None}
    if arguments.gpu:
        resources |= {"gpu_product": arguments.gpu, "gpu_memory": None}
    spec = case.job.spec.model_copy(update={"resources": case.job.spec.resources.model_copy(update=resources)})
    job = case.job.model_copy(update={"spec": spec})
    return replace(case, job=job, workload=replace(case.workload, virtual=False))


def _plans(arguments: argparse.Namespace, case: PredictionCase) -> list[Plan]:
    """The requested plan, else the best-ranked ones."""
    if arguments.plan is None:
        from memtune_cli.commands.plan import choose

        ranking = case.ranking()
        ranked = [*(each.plan for each in ranking.fitting), *(each.plan for each in ranking.uncertain)]
        return ranked[: arguments.top or 1] or [choose(ranking).plan]
    assumed, plan = case.what_if(arguments.plan)
    reasons = [*outside(case.job, plan), *assumed.notes[len(case.notes) :]]
    if reasons:
        raise PlanRefusedError(f"--plan: {case.name} does not allow {plan}: {reasons[0]}")
    return [plan]


def _emulated(
    case: PredictionCase, plans: Sequence[Plan], arguments: argparse.Namespace, directory: Path
) -> list[dict[str, Any]]:
    """Run the plans, and return their results in the same order."""
    from memtune_operator.local.backend import blocker_of

    job = _with_python(case.job)
    if blocker := blocker_of(job):
        raise InputError(f"{case.name}: {blocker.message}")
    install_runner(directory)
    prepare(job, directory)
    room = Room(partial(emulated_host_bytes, case.workload, case.predictor), arguments.parallel)
    snapshot = Path(arguments.snapshot).absolute() if arguments.snapshot else None
    with EmulatedForks(plans, directory, arguments.time_limit) as forks:

        def begun(number: int, plan: Plan) -> EmulatedRun:
            return EmulatedRun(job, plan, number, directory, snapshot if number == 1 else None, forks)

        return run_all(plans, begun, room, arguments.time_limit)


def _with_python(job: Job) -> Job:
    if "python" in job.spec.runner.model_fields_set:
        return job
    runner = job.spec.runner.model_copy(update={"python": sys.executable})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"runner": runner})})


def _document(case: PredictionCase, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    gpu, workload = case.workload.gpu, case.workload
    return {
        "version": json_output.VERSION,
        "command": "emulate",
        "job": case.name,
        "gpu": {"name": gpu.name, "product": chip_of(gpu.name).product, "usableBytes": gpu.usable_bytes},
        "ranks": workload.world,
        "outsideBytes": {name: int(size) for name, size in expected_overhead(workload.world).items()},
        "plans": [_of_plan(case, result) for result in results],
    }


def _of_plan(case: PredictionCase, result: dict[str, Any]) -> dict[str, Any]:
    plan = Plan.parse(result["plan"])
    predicted = json_output.detail(case, plan, case.predictor.predict(plan))["bytes"]
    history = result["history"]
    document = {name: value for name, value in result.items() if name != "history"}
    return {
        **document,
        "predictedBytes": {name: predicted[name] for name in ("allocated", "active", "reserved", "device")},
        "largest": {name: history[name] for name in ("isWhole", "phase", "tensorBytes", "largest")}
        if history
        else None,
    }


def _draw(arguments: argparse.Namespace, case: PredictionCase, result: dict[str, Any]) -> str:
    from memtune.memory.replay import Timeline
    from memtune_cli.commands import timeline

    history = result["history"]
    if not history or not history["step"]:
        raise InputError(f"--timeline: {result['plan']} ended before its first step did, so that there is none to draw")
    step = history["step"]
    points = [tuple(point) for point in step["points"]]
    drawn = Timeline(tuple(step["kinds"]), points, [(mark["point"], mark["phase"]) for mark in step["marks"]])
    timeline.draw(arguments.timeline, f"{case.name}: {result['plan']}, emulated", drawn, "--timeline")
    return f"{arguments.timeline} shows a step of {result['plan']}, by the phase that asked for the memory"
