"""A second job like the first: which probes it can reuse, and which it must repeat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_situations import condition, until_decided
from hypothesis import given
from hypothesis import strategies as st
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.job import Job
from memtune.api.status import ProbeStatus, load_status
from memtune.controller import Observed
from memtune.controller.context import Context
from memtune.controller.earlier_jobs import without_outdated
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.records import counted
from memtune.controller.stale_probes import current_probes, stale_probes
from memtune.controller.stored_measurements import MOST_EARLIER, read_probes, to_json
from memtune.planning.next_probe import most_promising
from memtune.plans.plan import Plan
from memtune.units import GIB
from memtune.wire.report import Ending

Earlier = tuple[ProbeStatus, ...]
VERSIONS = {"torch": "2.9.1+cu128", "driver": "570.86.15"}
DAYS = {name: 1_700_000_000.0 + 86_400 * day for day, name in enumerate(("first", "second", "third"))}
CUDA = {"gpusPerNode": 1, "gpuMemory": "8Gi", "gpuProduct": "h100-80gb"}


def job_of(name: str, **changes: Any) -> Job:
    job = make_job(**{"resources": CUDA, **changes})
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": f"uid-{name}", "name": name})})


def run_job(name: str, earlier: Earlier = (), factor: float = 1.0, **variables: Any) -> SimulatedCluster:
    """Return a job that has decided, in a namespace that remembers these probes."""
    changes = variables.pop("changes", {})
    cluster = SimulatedCluster(job_of(name, **changes), factor, earlier=earlier, now=DAYS[name])
    return until_decided(cluster, lambda run: cluster.finish(run, **{**VERSIONS, **variables}))


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


def test_the_first_job_probes_and_stores_its_measurements(first: SimulatedCluster) -> None:
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


def test_one_probe_that_is_taken_over_is_one(first: SimulatedCluster) -> None:
    best = [probe for probe in left(first) if probe.plan == first.status["plan"]["name"]]
    events = run_job("second", tuple(best)).events
    assert "ProbesKnown: 1 probe of earlier jobs (first) is taken over; only the best plan is probed again" in events


def test_a_third_job_names_the_source_of_each_measurement(first: SimulatedCluster) -> None:
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


def test_the_stop_reason_of_the_first_job_ends_the_probes_of_the_second() -> None:
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
    ("variables", "is_stale"),
    [
        ({"torch": "2.10.0+cu130"}, True),
        ({"driver": "580.1"}, True),
        ({"torch": None, "driver": "580.1"}, True),
        ({"torch": None, "driver": None}, False),
        ({"torch": None}, False),
        ({"driver": None}, False),
    ],
)
def test_probes_with_another_torch_or_driver_are_stale(
    first: SimulatedCluster, variables: dict[str, Any], is_stale: bool
) -> None:
    second = run_job("second", left(first), **variables)
    events = [each for each in second.events if each.startswith("ProbesStale: ")]
    messages = {probe["message"] for probe in taken_over(second)}
    if not is_stale:
        assert not events, "a version that is not known contradicts none"
        assert messages == {"job first ran it"}
        return
    assert messages == {"job first ran it with torch 2.9.1+cu128 and driver 570.86.15: stale"}
    assert events == [
        f"ProbesStale: {len(left(first))} probes of earlier jobs are stale and count less: they ran with torch "
        "2.9.1+cu128 and driver 570.86.15, not with what this job runs with"
    ]
    assert len(taken_over(second)) == len(left(first)), "none is dropped"
    assert second.status["plan"]["name"] in {probe["plan"] for probe in own(second)}


def test_stale_probes_still_save_probes() -> None:
    upgraded: dict[str, Any] = {"torch": "2.10.0+cu130"}
    changes = {"resources": {**CUDA, "gpuMemory": "9Gi"}}
    first = run_job("first", changes=changes)
    second = run_job("second", left(first), changes=changes, **upgraded)
    assert second.status["plan"]["name"] == first.status["plan"]["name"]
    assert len(own(second)) < len(own(first))
    assert all(probe.torch == "2.10.0+cu130" for probe in left(second) if probe.measured_by == "second")
    third = run_job("third", left(second), changes=changes, **upgraded)
    assert len(own(third)) == 1
    # What ran before the upgrade is stale from the beginning: the newest probe says so.
    assert any(each.startswith("ProbesStale: ") for each in third.events) == (len(left(second)) > len(own(second)))


def test_stale_probes_count_against_no_limit(first: SimulatedCluster) -> None:
    spent = sum(probe.gpu_seconds for probe in left(first))
    limits = {"tuning": {"maxProbes": 2, "maxGpuSeconds": spent}}
    second = SimulatedCluster(job_of("second", **limits), earlier=left(first), now=DAYS["second"])

    def finish(run: str) -> None:
        (pod,) = second.of(run)
        report = second.report(pod, Ending.SUCCEEDED, torch="2.10.0+cu130")
        # The first one was too tight, so that another plan is worth a probe.
        retries = int(len(own(second)) == 1)
        second.end(pod, 0, replace(report, memory=replace(report.memory, alloc_retries=retries)))

    until_decided(second, finish)
    assert len(own(second)) == 2
    assert second.status["plan"]["name"] == own(second)[1]["plan"]


def test_a_plan_that_ran_out_of_memory_under_another_driver_may_be_tried(first: SimulatedCluster) -> None:
    best = first.status["plan"]["name"]
    died = tuple(
        probe if probe.plan == best else probe.model_copy(update={"verdict": "device-oom", "demanded_bytes": 9 * GIB})
        for probe in left(first)
    )
    assert len(died) > 1
    ran = SimulatedCluster(job_of("second"), earlier=died, now=DAYS["second"])
    until_decided(ran, lambda run: ran.finish(run, **{**VERSIONS, "driver": "580.1"}))
    status = load_status(ran.status)
    knowledge = knowledge_of(ran.job, status, None)
    assert {lesson.plan for lesson in knowledge.lessons if lesson.stale and lesson.died} == {
        Plan.parse(probe.plan) for probe in died if probe.plan != best
    }
    assert knowledge.usable_bytes == 8 * GIB
    plain = run_job("second", died)
    now = knowledge_of(plain.job, load_status(plain.status), None)
    assert now.ceiling_bytes < knowledge.ceiling_bytes


def test_a_stale_peak_that_is_not_found_again_leaves_the_others_alone(first: SimulatedCluster) -> None:
    best = first.status["plan"]["name"]
    old = {"torch": "2.6.0", "ended_at": "2020-01-01T00:00:00Z"}
    mixed = tuple(probe if probe.plan == best else probe.model_copy(update=old) for probe in left(first))
    cluster = SimulatedCluster(job_of("second"), earlier=mixed)
    cluster.reconcile()
    status = load_status(cluster.status)
    known = next(probe for probe in status.probes if probe.measured_by and probe.plan != best and probe.peak_bytes)
    assert known.message == "job first ran it with torch 2.6.0 and driver 570.86.15: stale"
    assert known.peak_bytes
    peaks = known.peak_bytes.model_copy(update={"device": int(1.2 * known.peak_bytes.device)})
    own_one = known.model_copy(
        update={"name": "second-probe-9", "number": 9, "measured_by": "", "peak_bytes": peaks, **VERSIONS}
    )
    status = status.model_copy(update={"probes": (*status.probes, own_one)})
    context = Context(cluster.job, Observed(), cluster.now, most_promising, status, {})
    kept = without_outdated(context).status.probes
    assert [probe.plan for probe in kept if probe.measured_by] == [best]


VERSION = st.sampled_from(["", "a", "b"])


@given(
    st.lists(st.tuples(VERSION, VERSION, st.integers(0, 3)), min_size=1, max_size=6),
    st.lists(st.tuples(VERSION, VERSION), max_size=3),
)
def test_staleness_does_not_depend_on_the_order_of_records(
    earlier: list[tuple[str, str, int]], own_runs: list[tuple[str, str]]
) -> None:
    def probe(number: int, torch: str, driver: str, day: int = 0, by: str = "") -> ProbeStatus:
        return ProbeStatus(
            name=f"p-{number}",
            number=number,
            plan="x",
            torch=torch,
            driver=driver,
            measured_by=by,
            verdict="device-oom",
            ended_at=f"2026-01-0{day + 1}T00:00:0{number}Z",
        )

    probes = [probe(number, *each, by="first") for number, each in enumerate(earlier, 1)]
    probes += [probe(number, *each) for number, each in enumerate(own_runs, len(probes) + 1)]
    gone = {each.number for each in stale_probes(probes)}
    assert gone == {each.number for each in stale_probes(list(reversed(probes)))}
    assert {each.number for each in current_probes(probes)} == {each.number for each in probes} - gone
    versions = [each for each in own_runs if any(each)]
    for each in probes:
        same = [
            pair
            for pair in versions
            if not any(a and b and a != b for a, b in zip(pair, (each.torch, each.driver), strict=True))
        ]
        assert each.number not in gone or each.measured_by
        if versions:
            assert (each.number in gone) == (bool(each.measured_by) and not same)
    if not versions:
        assert len(gone) < len(earlier), "the newest is never stale"


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


def test_a_killed_operator_continues_from_the_status(first: SimulatedCluster) -> None:
    cluster = SimulatedCluster(job_of("second"), earlier=left(first))
    for _ in range(6):
        cluster.step(cut=1)  # written but not executed
    assert len(taken_over(cluster)) == len(left(first))
    cluster.earlier = ()  # somebody deleted the ConfigMap meanwhile
    cluster.reconcile()
    assert len(taken_over(cluster)) == len(left(first))
    assert len(cluster.runs()) == 1


@pytest.mark.parametrize("kept", [None, ()])
def test_without_earlier_measurements_a_job_begins_as_usual(kept: Earlier | None) -> None:
    cluster = SimulatedCluster(job_of("first"), earlier=kept)
    cluster.reconcile()
    assert not taken_over(cluster)
    assert len(cluster.runs()) == 1


def test_where_no_plan_of_an_earlier_job_fitted_the_job_searches_for_itself(first: SimulatedCluster) -> None:
    # Another process may have filled the GPU then, and a retry must not get the old answer.
    died = tuple(probe.model_copy(update={"verdict": "device-oom"}) for probe in left(first))
    second = run_job("second", died)
    assert not taken_over(second)
    assert second.status["plan"]["name"] == first.status["plan"]["name"]


def test_earlier_probes_of_plans_that_the_space_has_lost_are_not_taken_over(first: SimulatedCluster) -> None:
    second = SimulatedCluster(job_of("second", tuning={"space": {"precision": ["fp16"]}}), earlier=left(first))
    second.reconcile()
    assert not taken_over(second)
    assert len(second.runs()) == 1


def test_invalid_earlier_measurements_are_ignored(first: SimulatedCluster) -> None:
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
def test_invalid_measurements_are_refused(data: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_probes(data)


def test_earlier_measurements_outside_the_space_are_known_and_use_no_budget(first: SimulatedCluster) -> None:
    best = Plan.parse(first.status["plan"]["name"])
    space = {"zeroStages": [best.sharding.zero_stage], "backends": ["deepspeed"], "microBatch": [best.micro_batch]}
    second = run_job("second", left(first), changes={"tuning": {"space": space}})
    status = load_status(second.status)
    knowledge = knowledge_of(second.job, status, None)
    elsewhere = [probe.plan for probe in left(first) if not knowledge.space.allows(Plan.parse(probe.plan))]
    assert elsewhere
    assert {Plan.parse(plan) for plan in elsewhere} <= set(knowledge.measured_bytes)
    assert counted(status.probes, knowledge.space) == len(status.probes) - len(elsewhere)
