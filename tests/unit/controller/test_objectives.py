"""Both objectives: which plans remain to choose from, and which is launched."""

from __future__ import annotations

import pytest
from cluster_situations import launched
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.status import MAX_FRONT, PeakBytes, ProbeStatus, Status
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.plan_choice import front_of, winner
from memtune.planning.pareto import Point, front
from memtune.units import GIB

BOTH = ["throughput", "memory"]
Measured = tuple[int, float]


def probes(*measured: Measured) -> list[ProbeStatus]:
    """Return probes, numbered from 1, with these tokens per second and GiB."""
    return [
        ProbeStatus(
            name=f"a-probe-{number}",
            number=number,
            plan="bf16-z1-none-mb1x8",
            verdict="succeeded",
            ended_at="2026-03-01T10:00:00Z",
            tokens_per_second=tokens,
            peak_bytes=PeakBytes(allocated=1, active=1, reserved=1, device=int(gib * GIB), total=8 * GIB),
        )
        for number, (tokens, gib) in enumerate(measured, 1)
    ]


MEASURED = ((90, 4.0), (100, 6.0), (96, 5.0), (95, 5.5), (94, 3.0))


def chosen(measured: tuple[Measured, ...], **tuning: object) -> tuple[tuple[int, ...], int]:
    job = make_job(tuning=tuning)
    knowledge, good = knowledge_of(job, Status(), None), probes(*measured)
    return front_of(job, knowledge, good), winner(job, knowledge, good).number


@pytest.mark.parametrize(
    ("tuning", "front", "number"),
    [
        ({}, (), 2),
        ({"objectives": ["memory"]}, (), 5),
        ({"objectives": BOTH}, (2, 3, 5), 2),
        ({"objectives": BOTH, "slack": "0%"}, (2, 3, 5), 2),
        ({"objectives": BOTH, "slack": "5%"}, (2, 3, 5), 3),
        ({"objectives": BOTH, "slack": "6%"}, (2, 3, 5), 5),
    ],
)
def test_the_user_s_rule_picks_from_the_front(tuning: dict[str, object], front: tuple[int, ...], number: int) -> None:
    assert chosen(MEASURED, **tuning) == (front, number)


def test_the_first_of_equal_plans_is_on_the_front() -> None:
    assert chosen(((100, 4.0), (100, 4.0)), objectives=BOTH) == ((1,), 1)


def test_the_smallest_of_equally_fast_plans_is_launched() -> None:
    assert chosen(((100, 5.0), (100, 4.0)), objectives=BOTH) == ((2,), 2)


@pytest.mark.parametrize("slack", ["0%", "3%", "5%", "7%", "12%", "30%"])
def test_a_long_front_keeps_its_ends_and_the_launched_plan(slack: str) -> None:
    many = tuple((100 + number, 1.0 + number / 10) for number in range(30))
    numbers, launched_number = chosen(many, objectives=BOTH, slack=slack)
    assert len(numbers) == len(set(numbers)) == MAX_FRONT
    assert (numbers[0], numbers[-1]) == (30, 1)
    assert launched_number in numbers
    assert list(numbers) == sorted(numbers, reverse=True)


def tuned(**tuning: object) -> SimulatedCluster:
    return launched(make_job(tuning={"objectives": BOTH, "maxGpuSeconds": 100_000, **tuning}))


def test_a_job_with_both_objectives_measures_its_front_and_launches_the_smallest_that_is_fast_enough() -> None:
    cluster = tuned(slack="40%")
    measured = {probe["number"]: probe for probe in cluster.status["probes"] if probe["verdict"] == "succeeded"}
    points = {
        number: Point(probe["tokensPerSecond"], -probe["peakBytes"]["device"]) for number, probe in measured.items()
    }
    found = cluster.status["front"]
    assert len(found) > 1
    assert {points[number] for number in found} == set(front(list(points.values())))
    fastest = max(point.speed for point in points.values())
    fast = [number for number, point in points.items() if point.speed >= 0.6 * fastest]
    best = max(fast, key=lambda number: points[number].free)
    assert cluster.status["plan"]["name"] == measured[best]["plan"]
    assert best in found
    (told,) = [each["message"] for each in cluster.status["conditions"] if each["type"] == "Tuned"]
    assert told.startswith(f"{measured[best]['plan']} won as the smallest within 40% of the fastest: probe {best} ")


def test_with_both_objectives_smaller_plans_are_probed_too() -> None:
    def least(cluster: SimulatedCluster) -> int:
        return min(int(probe["predictedBytes"]) for probe in cluster.status["probes"])

    assert least(tuned()) < least(tuned(objectives=["throughput"]))
