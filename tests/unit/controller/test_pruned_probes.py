"""Probes that end early: their target, and what becomes of their measurements."""

from __future__ import annotations

from typing import Any

import cluster_situations
import pytest
from cluster_situations import condition, until_decided
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.api.status import MAX_STEPS, PeakBytes, ProbeStatus, StepStatus, load_status
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.plan_choice import winner
from memtune.controller.probe_target import next_target
from memtune.controller.records import to_run
from memtune.controller.reported_numbers import thinned
from memtune.controller.stored_measurements import to_json
from memtune.controller.trials import search_state
from memtune.units import GIB
from memtune.wire.names import run_name
from memtune.wire.probe_pruning import NOTHING, Pruned, Step, Target, pruned
from memtune.wire.report import MOST_STEPS, MeasuredStep
from memtune.wire.run import Run, TraceRun
from memtune_operator.pods import variables

PLAN, OTHER = "bf16-z1-none-mb1x8", "bf16-z1-none-mb2x4"


def probe(number: int, plan: str = PLAN, tokens: int = 1000, gib: float = 4.0, **changes: Any) -> ProbeStatus:
    return ProbeStatus(
        name=f"{make_job().metadata.name}-probe-{number}",
        number=number,
        plan=plan,
        verdict="succeeded",
        ended_at="2026-03-01T10:00:00Z",
        tokens_per_second=tokens,
        step_seconds=2.0,
        peak_bytes=PeakBytes(allocated=1, active=1, reserved=1, device=int(gib * GIB), total=8 * GIB),
        **changes,
    )


def target(job: Job, *probes: ProbeStatus) -> Target:
    return next_target(job, knowledge_of(job, load_status({}), None), probes)


MOST = int(8 * GIB * 0.94)


@pytest.mark.parametrize(
    ("objectives", "found"),
    [
        (["throughput"], Target(1200, MOST)),
        (["memory"], Target(0, 4 * GIB)),
        (["throughput", "memory"], Target(0, MOST)),
    ],
)
def test_the_best_measured_plan_is_the_target(objectives: list[str], found: Target) -> None:
    job = make_job(tuning={"objectives": objectives})
    tight = probe(3, tokens=9000, gib=7.9)
    assert target(job, probe(1), probe(2, OTHER, 1200, 5.0), tight) == found


@pytest.mark.parametrize("objectives", [["throughput"], ["memory"], ["throughput", "memory"]])
def test_before_a_plan_may_be_launched_a_probe_has_to_leave_its_headroom(objectives: list[str]) -> None:
    job = make_job(tuning={"objectives": objectives})
    assert target(job) == Target(0, MOST)
    assert target(job, probe(1, gib=7.9)) == Target(0, MOST)
    assert target(job, probe(1, measured_by="earlier")) == Target(0, MOST)


def test_on_an_unknown_gpu_the_first_probe_has_no_target() -> None:
    assert target(make_job(resources={"gpusPerNode": 1})) == NOTHING


def test_a_plan_whose_probe_was_too_slow_to_win_is_launched_only_where_no_other_is_left() -> None:
    job = make_job()
    knowledge = knowledge_of(job, load_status({}), None)
    slow = probe(2, OTHER, 5000, pruned="speed")
    assert winner(job, knowledge, [probe(1), slow]).number == 1, "whatever its report says of its speed"
    assert winner(job, knowledge, [slow]).number == 2


class PruningCluster(SimulatedCluster):
    """A cluster that records each run's target."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, 1.0)
        self.targets: dict[str, Target] = {}

    def post(self, run: Run | TraceRun) -> None:
        super().post(run)
        if isinstance(run, Run):
            self.targets[run_name(self.job.metadata.name, run.kind, run.number)] = run.target


def probed(job: Job) -> PruningCluster:
    """Return a cluster whose probes end as in the runner."""
    cluster = PruningCluster(job)

    def finish(run: str) -> None:
        for pod in cluster.of(run):
            if pod.is_running:
                cluster.finish(run, **told(cluster, pod.plan, cluster.targets[run]))

    return until_decided(cluster, finish)


def told(cluster: SimulatedCluster, plan: str, beats: Target) -> dict[str, Any]:
    training, peak = cluster.job.spec.training, cluster.truth(plan)
    # Slower than predicted, or plans that lose would not be probed at all.
    seconds = cluster.step_seconds(plan) * (2 if beats.tokens_per_second else 1)
    speed = training.global_batch_size * training.sequence_length / seconds
    why = pruned(beats, [Step(speed, peak)])
    steps = tuple(MeasuredStep(number, seconds, peak) for number in ((2,) if why else (2, 3)))
    return {
        "pruned": why,
        "measured_steps": steps,
        "steps": steps[-1].number,
        "step_seconds": seconds,
        "tokens_per_second": speed,
    }


def test_pruned_probes_are_reported_and_the_best_plan_is_launched() -> None:
    roomy = {"nodes": 2, "gpusPerNode": 1, "gpuMemory": "12Gi", "device": "virtual"}
    cluster = probed(make_job(tuning={"maxGpuSeconds": 100_000}, resources=roomy))
    probes = cluster.status["probes"]
    assert cluster.targets[probes[0]["name"]] == Target(0, int(12 * GIB * 0.94))
    assert all(cluster.targets[each["name"]].tokens_per_second for each in probes[1:])
    ended = [each for each in probes if each.get("pruned")]
    assert ended
    best = max((each for each in probes if each["verdict"] == "succeeded"), key=lambda each: each["tokensPerSecond"])
    assert cluster.status["plan"]["name"] == best["plan"]
    assert best not in ended
    for each in ended:
        assert [step["step"] for step in cluster.status["measuredSteps"] if step["probe"] == each["number"]] == [2]
        assert any(
            f"probe {each['number']} ({each['plan']}) succeeded: measured" in event
            and f"ended early: {Pruned(each['pruned']).words}" in event
            for event in cluster.events
        )
    assert condition(cluster, "Tuned")["reason"] == "Measured"
    assert not any(cluster.targets[each["name"]] != NOTHING for each in cluster.status["attempts"])


def test_with_both_objectives_the_target_is_memory() -> None:
    cluster = probed(make_job(tuning={"maxGpuSeconds": 100_000, "objectives": ["throughput", "memory"]}))
    targets = [cluster.targets[each["name"]] for each in cluster.status["probes"]]
    assert len(targets) > 1
    assert set(targets) == {Target(0, MOST)}


def test_an_emulated_probe_has_no_target() -> None:
    resources = {"gpusPerNode": 1, "gpuMemory": "8Gi", "gpuProduct": "h100-80gb", "device": "emulated"}
    cluster = probed(make_job(resources=resources))
    assert len(cluster.status["probes"]) > 1
    assert set(cluster.targets.values()) == {NOTHING}


def test_a_probe_pod_has_its_target() -> None:
    job, status = make_job(), load_status({})
    run = to_run(job, status, probe(1), 0, target=Target(1200, MOST))
    found = variables.of_pod(job, run, 0, "/dev/termination-log")
    assert (found["MEMTUNE_PROBE_TARGET_TOKENS"], found["MEMTUNE_PROBE_TARGET_BYTES"]) == ("1200", str(MOST))
    found = variables.of_pod(job, to_run(job, status, probe(1), 0), 0, "/dev/termination-log")
    assert (found["MEMTUNE_PROBE_TARGET_TOKENS"], found["MEMTUNE_PROBE_TARGET_BYTES"]) == ("", "")


def _steps(probe: int, count: int) -> list[StepStatus]:
    return [StepStatus(probe=probe, step=number, seconds=1.0, device_bytes=1) for number in range(2, 2 + count)]


def test_the_status_has_the_steps_of_every_probe() -> None:
    job = make_job(tuning={"maxGpuSeconds": 1_000_000, "maxProbes": 12, "probeSteps": 100})
    steps = tuple(MeasuredStep(number, 2.0**60 if number == 2 else 1.0, 2**60) for number in range(2, 2 + MOST_STEPS))
    found = cluster_situations.probed(job, measured_steps=steps).status
    probes = [each["number"] for each in found["probes"]]
    assert [step["probe"] for step in found["measuredSteps"]] == [n for n in probes for _ in range(MOST_STEPS)]
    load_status(found)


def test_the_status_keeps_some_steps_of_each_probe_and_its_last() -> None:
    kept: tuple[StepStatus, ...] = ()
    for number in range(1, 9):
        kept = thinned((*kept, *_steps(number, MOST_STEPS)))
    assert [step.probe for step in kept] == [number for number in range(1, 9) for _ in range(MAX_STEPS // 8)]
    assert all(1 + MOST_STEPS in (step.step for step in kept if step.probe == number) for number in range(1, 9))


def test_the_newest_probes_keep_a_step_where_the_status_is_full() -> None:
    steps = [step for number in range(1, MAX_STEPS + 4) for step in _steps(number, 1)]
    assert [step.probe for step in thinned(steps)] == list(range(4, MAX_STEPS + 4))


STEPS = tuple(
    StepStatus(probe=1, step=2 + place, seconds=2.0 / (place + 1), device_bytes=(4 + place) * GIB) for place in (0, 1)
)


@pytest.mark.parametrize(
    ("objectives", "steps"),
    [
        (["throughput"], ((2, 1000.0), (3, 2000.0))),
        (["memory"], ((2, 4.0 * GIB), (3, 3.0 * GIB))),
    ],
)
def test_the_search_gets_steps_in_terms_of_the_objective(
    objectives: list[str], steps: tuple[tuple[int, float], ...]
) -> None:
    job = make_job(tuning={"objectives": objectives})
    probes = (probe(1, pruned="speed"), probe(2, OTHER))
    status = load_status({}).model_copy(update={"probes": probes, "measured_steps": STEPS})
    first, second = search_state(job, status, knowledge_of(job, status, None)).trials
    assert (first.pruned, first.fits, first.steps) == (True, True, steps)
    assert (second.pruned, second.fits, second.steps) == (False, True, ())


def test_later_jobs_hear_that_a_probe_ended_early() -> None:
    assert to_json(probe(1, pruned="speed"))["pruned"] == "speed"
