"""Two thousand random histories of a job in a hostile cluster, in parts; `tests/unit` plays a few."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache

import pytest
from cluster_situations import SAVED, die, launched
from history_moves import WEIGHTED, Move, play
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from small_jobs import factory_job, make_job

from memtune.api.job import Job
from memtune.controller import job_knowledge
from memtune.wire.report import Ending

FIXED = {"mode": "Fixed", "plan": "bf16-z1-none-mb4x4"}
EVALUATING = {"globalBatchSize": 16, "sequenceLength": 1024, "evaluation": {"batchSize": 8}}
JOBS = (
    *(make_job(nodes, tuning={"parallelProbes": parallel}) for nodes in (1, 2) for parallel in (1, 2)),
    factory_job(),
    make_job(tuning={"parallelProbes": 3}),
    make_job(tuning={"objectives": ["memory"], "maxGpuSeconds": 150}),
    make_job(tuning={"mode": "PredictOnly"}),
    make_job(2, tuning={**FIXED, "plan": "bf16-z1-none-mb2x4"}),
    make_job(tuning=FIXED, checkpoint=None, retry={"allowRestart": True, "maxOomRetries": 3}),
    make_job(checkpoint=None),
    make_job(activeDeadlineSeconds=500, ttlSecondsAfterFinished=60),
    make_job(training=EVALUATING, retry={"consent": ["optimizer-8bit"]}),
)
FACTORS = (0.8, 1.0, 1.25, 1.6)
pytestmark = pytest.mark.long
moves = st.lists(st.tuples(st.sampled_from(WEIGHTED), st.integers(0, 9)), max_size=45)


@pytest.fixture(autouse=True, scope="module")
def _remembered_models() -> Iterator[None]:
    """Cache models: histories of the same few jobs make the same measurements."""
    patch = pytest.MonkeyPatch()
    patch.setattr(job_knowledge, "_cached", lru_cache(4096)(job_knowledge._cached.__wrapped__))
    yield
    patch.undo()


@pytest.mark.parametrize("part", range(8))
def test_every_history_keeps_its_promises_and_ends(part: int) -> None:
    @seed(part)
    @settings(
        max_examples=250,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.sampled_from(JOBS), st.sampled_from(FACTORS), moves)
    def histories(job: Job, factor: float, moves: list[Move]) -> None:
        assert play(job, factor, moves)["phase"] in ("Succeeded", "Failed")

    histories()


def test_a_status_stays_small_however_many_attempts_there_are() -> None:
    cluster = launched(make_job(retry={"maxDisruptions": 60}))
    for _ in range(50):
        die(cluster, Ending.TERMINATED, 143, **SAVED, message="x" * 5000)
        cluster.tick(400.0)
        for run in cluster.runs():
            cluster.start(run)
        cluster.reconcile()
        assert len(json.dumps(cluster.status)) < 100_000
    attempts = cluster.status["attempts"]
    assert (attempts[-1]["number"], len(attempts), cluster.status["disruptions"]) == (51, 12, 50)
