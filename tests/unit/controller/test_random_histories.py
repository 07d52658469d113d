"""A few random histories of a job in a hostile cluster; `tests/contract` plays many more."""

from __future__ import annotations

from history_moves import WEIGHTED, Move, play
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_jobs import factory_job, make_job, template

from memtune.api.job import Job

FACTORS = (0.8, 1.0, 1.25, 1.6)
MOST_MOVES = 20
moves = st.lists(st.tuples(st.sampled_from(WEIGHTED), st.integers(0, 9)), max_size=MOST_MOVES)
SPACE = {"zeroStages": [1, 3], "checkpointing": ["full"], "backends": ["deepspeed"], "offload": ["none", "optimizer"]}
BOUNDED = template(requests={"memory": "1Gi"}, limits={"memory": "5Gi"})
# On a real GPU: a virtual one offloads nothing.
OFFLOADING = make_job(
    template=BOUNDED, resources={"gpuMemory": "8Gi"}, tuning={"space": SPACE, "objectives": ["memory"]}
)
JOBS = tuple(make_job(nodes, tuning={"parallelProbes": parallel}) for nodes in (1, 2) for parallel in (1, 2))


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(JOBS), st.sampled_from(FACTORS), moves)
def test_every_history_keeps_its_promises_and_ends(job: Job, factor: float, moves: list[Move]) -> None:
    assert play(job, factor, moves)["phase"] in ("Succeeded", "Failed")


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(FACTORS), moves)
def test_every_history_of_a_factory_keeps_its_promises_and_ends(factor: float, moves: list[Move]) -> None:
    assert play(factory_job(), factor, moves)["phase"] in ("Succeeded", "Failed")


@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(FACTORS), moves)
def test_every_history_of_a_job_that_offloads_keeps_its_promises_and_ends(factor: float, moves: list[Move]) -> None:
    assert play(OFFLOADING, factor, moves)["phase"] in ("Succeeded", "Failed")
