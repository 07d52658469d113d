"""A second job that asks the same as the first: what it need not probe again, and when it has to."""

from __future__ import annotations

from typing import Any

import pytest
from decided import condition, until_decided
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.api.status import RunStatus
from memtune.controller.earlier_jobs import MOST_EARLIER, read_probes, to_json
from memtune.units import GIB
from memtune.wire.report import Ending

Earlier = tuple[RunStatus, ...]
VERSIONS = {"torch": "2.9.1+cu128", "driver": "570.86.15"}
DAYS = {name: 1_700_000_000.0 + 86_400 * day for day, name in enumerate(("first", "second", "third"))}
CUDA = {"gpusPerNode": 1, "gpuMemory": "8Gi", "gpuProduct": "h100-80gb"}


def job_of(name: str, **changes: Any) -> Job:
    job = make_job(**{"resources": CUDA, **changes})
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": f"uid-{name}", "name": name})})


def run_job(name: str, earlier: Earlier = (), factor: float = 1.0, **told: Any) -> SimulatedCluster:
    """A job that has made up its mind, in a namespace that remembers these probes."""
    changes = told.pop("changes", {})
    cluster = SimulatedCluster(job_of(name, **changes), factor, earlier=earlier, now=DAYS[name])
    return until_decided(cluster, lambda run: cluster.finish(run, **{**VERSIONS, **told}))


def own(cluster: SimulatedCluster) -> list[dict[str, Any]]:
    return [probe for probe in cluster.status["probes"] if not probe.get("measuredBy")]


def taken_over(cluster: SimulatedCluster) -> list[dict[str, Any]]:
    return [probe for probe in cluster.status["probes"] if probe.get("measuredBy")]


@pytest.fixture(scope="module")
def first() -> SimulatedCluster:
    return run_job("first")


def left(cluster: SimulatedCluster) -> Earlier:
    assert cluster.earlier
    return cluster.earlier


def test_the_first_job_probes_and_leaves_what_it_measured(first: SimulatedCluster) -> None:
    assert len(own(first)) > 1
    assert {probe.plan for probe in left(first)} == {probe["plan"] for probe in own(first)}
    assert {(probe.measured_by, probe.torch, probe.driver) for probe in left(first)} == {
        ("first", "2.9.1+cu128", "570.86.15")
    }


def test_the_second_job_makes_one_probe_and_launches_the_same_plan(first: SimulatedCluster) -> None:
    second = run_job("second", left(first))
    (probe,) = own(second)
    assert probe["plan"] == first.status["plan"]["name"] == second.status["plan"]["name"]
    assert second.status["gpuSecondsSpent"] == probe["gpuSeconds"]
    assert all(pod.run != taken["name"] for taken in taken_over(second) for pod in second.pods.values())


def test_the_trail_says_where_a_known_value_came_from(first: SimulatedCluster) -> None:
    second = run_job("second", left(first))
    count = len(left(first))
    assert (
        f"ProbesKnown: {count} probes of earlier jobs (first) are taken over; only the best plan is probed again"
        in (second.events)
    )
    assert any(each.startswith("ProbeStarted: ") and ", as job first did, " in each for each in second.events)
    assert (
        f"{second.status['plan']['name']} won, which job first found best: probe {count + 1} "
        in (condition(second, "Tuned")["message"])
    )
    assert {probe["message"] for probe in taken_over(second)} == {"job first ran it"}


def test_a_third_job_tells_who_measured_what(first: SimulatedCluster) -> None:
    second = run_job("second", left(first))
    third = run_job("third", left(second))
    assert len(own(third)) == 1
    assert {probe["measuredBy"] for probe in taken_over(third)} == {"first", "second"}


@pytest.mark.parametrize("noise", [0.97, 1.03])
def test_noise_of_the_one_probe_makes_no_second_one(first: SimulatedCluster, noise: float) -> None:
    speed = next(probe["tokensPerSecond"] for probe in own(first) if probe["plan"] == first.status["plan"]["name"])
    second = run_job("second", left(first), tokens_per_second=speed * noise)
    assert len(own(second)) == 1
    assert second.status["plan"]["name"] == first.status["plan"]["name"]


def test_what_ended_the_probes_of_the_first_job_ends_those_of_the_second() -> None:
    few = {"tuning": {"maxProbes": 2}}
    first = run_job("first", changes=few)
    assert len(own(first)) == 2
    second = run_job("second", left(first), changes=few)
    assert len(own(second)) == 1
    assert "maxProbes allows no more than 2 probes, with those of earlier jobs" in condition(second, "Tuned")["message"]
    third = run_job("third", left(first), changes={"tuning": {"maxProbes": 1}})
    assert len(own(third)) == 1, "one probe is always the job's own"


def test_gpu_seconds_of_earlier_jobs_are_spent_as_well() -> None:
    first = run_job("first")
    spent = first.status["gpuSecondsSpent"]
    assert len(own(first)) > 2
    two = left(first)[:2]
    limit = {"tuning": {"maxGpuSeconds": sum(probe.gpu_seconds for probe in two) + 1}}
    assert limit["tuning"]["maxGpuSeconds"] < spent
    second = run_job("second", two, changes=limit)
    assert len(own(second)) == 1
    assert "0 GPU-seconds left in tuning.maxGpuSeconds" in condition(second, "Tuned")["message"]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"torch": "2.10.0+cu130"}, "they ran with torch 2.9.1+cu128 and driver 570.86.15, probe"),
        ({"driver": "580.1"}, "with torch 2.9.1+cu128 and driver 580.1"),
        ({"torch": None, "driver": "580.1"}, "with torch unknown and driver 580.1"),
        ({"torch": None, "driver": None}, ""),
        ({"torch": None}, ""),
        ({"driver": None}, ""),
    ],
)
def test_probes_with_another_torch_or_driver_are_dropped(
    first: SimulatedCluster, told: dict[str, Any], why: str
) -> None:
    second = run_job("second", left(first), **told)
    outdated = [each for each in second.events if each.startswith("ProbesOutdated: ")]
    if not why:
        assert not outdated, "a version that is not known contradicts none"
        return
    assert len(outdated) == 1
    assert why in outdated[0]
    assert not taken_over(second)
    assert len(own(second)) > 1, "it searches as if it were the first"
    assert {probe.measured_by for probe in left(second)} == {"second"}


@pytest.mark.parametrize("known", [{}, {"torch": VERSIONS["torch"]}, {"driver": VERSIONS["driver"]}])
def test_an_earlier_out_of_memory_without_a_report_is_not_forgotten(
    first: SimulatedCluster, known: dict[str, Any]
) -> None:
    best = first.status["plan"]["name"]
    other = next(probe.plan for probe in left(first) if probe.plan != best)
    nothing = {"verdict": "device-oom", "peak_bytes": None, "torch": None, "driver": None}
    died = tuple(
        probe.model_copy(update={**nothing, **known}) if probe.plan == other else probe for probe in left(first)
    )
    second = run_job("second", died)
    assert not [each for each in second.events if each.startswith("ProbesOutdated: ")]
    assert [probe["plan"] for probe in own(second)] == [best]


def test_a_peak_that_is_not_found_again_drops_them_all(first: SimulatedCluster) -> None:
    second = run_job("second", left(first), factor=0.8)
    (text,) = [each for each in second.events if each.startswith("ProbesOutdated: ")]
    assert " on the same plan" in text
    assert not taken_over(second)


def test_a_known_plan_that_runs_out_of_memory_drops_them_all(first: SimulatedCluster) -> None:
    cluster = SimulatedCluster(job_of("second"), earlier=left(first))
    cluster.reconcile()
    (run,) = cluster.runs()
    cluster.start(run)
    cluster.tick(20.0)
    for pod in cluster.pods.values():
        cluster.end(pod, 85, cluster.report(pod, Ending.DEVICE_OOM, **VERSIONS))
    cluster.reconcile()
    assert any("ran out of memory on a plan that job first measured" in each for each in cluster.events)
    assert not taken_over(cluster)


def test_nothing_else_is_probed_beside_the_one_that_is_to_confirm(first: SimulatedCluster) -> None:
    cluster = SimulatedCluster(job_of("second", tuning={"parallelProbes": 4}), earlier=left(first))
    cluster.reconcile()
    assert len(cluster.runs()) == 1


def test_an_operator_that_is_killed_goes_on_from_what_is_written(first: SimulatedCluster) -> None:
    cluster = SimulatedCluster(job_of("second"), earlier=left(first))
    for _ in range(6):
        cluster.step(cut=1)  # written, and nothing done
    assert len(taken_over(cluster)) == len(left(first))
    cluster.earlier = ()  # somebody deleted the ConfigMap meanwhile
    cluster.reconcile()
    assert len(taken_over(cluster)) == len(left(first))
    assert len(cluster.runs()) == 1


@pytest.mark.parametrize("kept", [None, ()])
def test_without_anything_remembered_a_job_begins_as_ever(kept: Earlier | None) -> None:
    cluster = SimulatedCluster(job_of("first"), earlier=kept)
    cluster.reconcile()
    assert not taken_over(cluster)
    assert len(cluster.runs()) == 1


def test_where_no_plan_of_an_earlier_job_fitted_the_job_searches_for_itself(first: SimulatedCluster) -> None:
    # A stranger's process may have filled the GPU then, and whoever tries again must not be told the old answer.
    died = tuple(probe.model_copy(update={"verdict": "device-oom"}) for probe in left(first))
    second = run_job("second", died)
    assert not taken_over(second)
    assert second.status["plan"]["name"] == first.status["plan"]["name"]


def test_earlier_probes_of_plans_that_the_space_has_lost_are_not_taken_over(first: SimulatedCluster) -> None:
    second = SimulatedCluster(job_of("second", tuning={"space": {"precision": ["fp16"]}}), earlier=left(first))
    second.reconcile()
    assert not taken_over(second)
    assert len(second.runs()) == 1


def test_what_cannot_be_of_this_job_is_passed_over(first: SimulatedCluster) -> None:
    sound = left(first)[0]
    wrong = (
        sound.model_copy(update={"plan": "bf16-z1-none-mb3x7"}),
        sound.model_copy(update={"plan": "nonsense"}),
        sound.model_copy(update={"measured_by": ""}),
        sound.model_copy(update={"verdict": "hung"}),
        sound.model_copy(update={"ended_at": None}),
        sound.model_copy(update={"peak_bytes": None}),
    )
    cluster = SimulatedCluster(job_of("second"), earlier=wrong)
    cluster.reconcile()
    assert not taken_over(cluster)


def test_probes_are_read_as_they_were_written(first: SimulatedCluster) -> None:
    written = [to_json(probe) for probe in left(first)]
    read = read_probes(written)
    assert [to_json(probe) for probe in read] == written
    assert read[0].peak_bytes == left(first)[0].peak_bytes
    assert (read[0].peak_bytes and read[0].peak_bytes.total) == 8 * GIB


@pytest.mark.parametrize("data", [None, {}, [1], [{}], [{"plan": "a b"}], [{"plan": "x"}] * (MOST_EARLIER + 1)])
def test_what_nobody_wrote_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_probes(data)
