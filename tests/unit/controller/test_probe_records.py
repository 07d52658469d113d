"""Which records stay when there are more than a status can hold."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from cluster_situations import condition, die, until_decided
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.status import MAX_ATTEMPTS, AttemptStatus, ProbeStatus, Status
from memtune.api.tuning import MAX_PROBES
from memtune.controller.records import to_run, with_attempt, with_probe
from memtune.controller.retry_delay import retry_delay
from memtune.plans.plan import Plan
from memtune.wire.report import Ending, Phase

ENDED: dict[str, Any] = {"plan": "bf16-z1-none-mb1x16", "ended_at": "2026-03-01T10:00:00Z"}


def test_the_status_keeps_the_newest_attempts_and_that_of_the_newest_checkpoint() -> None:
    status = Status()
    for number in range(1, 41):
        checkpoint: Literal["saved", "unknown"] = "saved" if number == 3 else "unknown"
        record = AttemptStatus(
            name=f"a-train-{number}", number=number, verdict="disrupted", checkpoint=checkpoint, trained=True, **ENDED
        )
        status = with_attempt(status, record)
    assert [record.number for record in status.attempts] == [3, *range(40 - MAX_ATTEMPTS + 2, 41)]


def test_the_status_keeps_the_out_of_memory_among_many_hung_attempts() -> None:
    fell = AttemptStatus(name="a-train-1", number=1, verdict="device-oom", **ENDED)
    status = with_attempt(Status(), fell)
    for number in range(2, 41):
        status = with_attempt(status, AttemptStatus(name=f"a-train-{number}", number=number, verdict="hung", **ENDED))
    assert (status.attempts[0], len(status.attempts)) == (fell, MAX_ATTEMPTS)


def test_informative_probes_outlive_others_in_the_status() -> None:
    status = Status()
    for number in range(1, 61):
        verdict: Literal["disrupted", "succeeded"] = "disrupted" if number % 5 == 0 else "succeeded"
        record = ProbeStatus(name=f"a-probe-{number}", number=number, verdict=verdict, **ENDED)
        status = with_probe(status, record)
    numbers = [record.number for record in status.probes]
    assert len(numbers) == MAX_PROBES
    assert [number for number in numbers if number % 5 == 0] == [60], "the last one always stays"


@pytest.mark.parametrize(("attempts", "pause"), [(1, 10), (2, 20), (3, 40), (5, 160), (6, 300), (30, 300)])
def test_the_pause_before_an_attempt_doubles_up_to_five_minutes(attempts: int, pause: int) -> None:
    died = [AttemptStatus(name="a-train-1", number=1, verdict="disrupted", **ENDED)] * attempts
    ended_at = 1_772_359_200.0  # 2026-03-01T10:00:00Z
    assert retry_delay(died, ended_at) == pause
    assert retry_delay(died, ended_at + 4) == pause - 4
    assert retry_delay(died, ended_at - 3600) == pause, "a clock that jumped back"


def test_a_long_attempt_resets_the_pause_and_an_informative_probe_needs_none() -> None:
    ended_at = 1_772_359_200.0
    short = AttemptStatus(name="a-train-1", number=1, verdict="disrupted", **ENDED)
    long = short.model_copy(update={"started_at": "2026-03-01T09:00:00Z"})
    assert retry_delay([short, short, long], ended_at) == 10
    assert retry_delay([ProbeStatus(name="a-probe-1", number=1, verdict="succeeded", **ENDED)], ended_at) == 0


def three_probes_died_in(phase: Phase) -> SimulatedCluster:
    """A cluster whose job has made its three probes, of which each ran out of memory in this phase."""
    cluster = SimulatedCluster(make_job(tuning={"maxProbes": 3}))
    for _ in range(3):
        cluster.reconcile()
        cluster.tick(600)
        for run in cluster.runs():
            cluster.start(run)
        die(cluster, Ending.DEVICE_OOM, 85, phase=phase, message=f"CUDA out of memory. {'x ' * 200}")
    return cluster


def test_a_job_whose_probes_ran_out_of_memory_in_a_save_says_what_would_help() -> None:
    cluster = three_probes_died_in(Phase.SAVE)
    message = condition(cluster, "Failed")["message"]
    assert message.count("ran out of GPU memory during a save") == len(cluster.status["probes"])
    assert ". What would help: let the script make no copies on the GPU of what it saves" in message


def test_a_job_whose_probes_ran_out_of_memory_in_an_evaluation_says_what_would_help() -> None:
    cluster = three_probes_died_in(Phase.EVALUATION)
    message = condition(cluster, "Failed")["message"]
    assert ". What would help: let the script evaluate in batches of $MEMTUNE_EVALUATION_BATCH" in message
    assert "adamw-8bit" not in message, "no other plan is known to make room for what the script keeps there"


def test_after_an_evaluation_ran_out_of_memory_probes_and_the_training_evaluate_in_micro_batches() -> None:
    probes = tuple(
        ProbeStatus(name=f"a-probe-{number}", number=number, verdict="succeeded", **{**ENDED, "plan": plan})
        for number, plan in enumerate(("bf16-z1-none-mb8x2", "bf16-z1-none-mb4x4", "bf16-z1-none-mb2x8"), 1)
    )
    died = probes[1].model_copy(update={"verdict": "device-oom", "out_of_memory": "evaluation"})
    status = Status(probes=(probes[0], died, probes[2]))
    runs = [to_run(make_job(), status, probe, 0) for probe in status.probes]
    assert [run.evaluation_batch for run in runs] == [0, 0, 2]
    beside = probes[2].model_copy(update={"started_at": "2026-03-01T09:59:00Z"})
    status = Status(probes=(probes[0], died, beside))
    assert to_run(make_job(), status, beside, 0).evaluation_batch == 0, "it ran when the other failed"


def test_the_training_evaluates_as_the_probe_of_its_plan_did() -> None:
    cluster = SimulatedCluster(make_job(tuning={"maxProbes": 2}))
    cluster.reconcile()
    cluster.tick(600)
    for run in cluster.runs():
        cluster.start(run)
    die(cluster, Ending.DEVICE_OOM, 85, phase=Phase.EVALUATION, message="CUDA out of memory.")
    until_decided(cluster, cluster.finish)
    plan = Plan.parse(cluster.status["attempts"][0]["plan"])
    assert cluster.status["attempts"][0]["evaluationBatch"] == plan.micro_batch
