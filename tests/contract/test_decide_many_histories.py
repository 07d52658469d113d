"""Many random histories of a job in a hostile world: what `tests/unit` plays a few of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moves import WEIGHTED, Move, play
from small_jobs import factory_job, make_job

from memtune.decide import model
from memtune.spec.job import Job

JOBS = (
    *(make_job(nodes, tuning={"parallelProbes": parallel}) for nodes in (1, 2) for parallel in (1, 2)),
    factory_job(),
)
FACTORS = (0.8, 1.0, 1.25, 1.6)
moves = st.lists(st.tuples(st.sampled_from(WEIGHTED), st.integers(0, 9)), max_size=45)


@pytest.fixture(autouse=True, scope="module")
def _remembered_models() -> Iterator[None]:
    """Histories of the same few jobs learn the same lessons, so that most models need not be computed again."""
    patch = pytest.MonkeyPatch()
    patch.setattr(model, "_cached", lru_cache(4096)(model._cached.__wrapped__))
    yield
    patch.undo()


@settings(
    max_examples=1000,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.sampled_from(JOBS), st.sampled_from(FACTORS), moves)
def test_every_history_keeps_its_promises_and_ends(job: Job, factor: float, moves: list[Move]) -> None:
    assert play(job, factor, moves)["phase"] in ("Succeeded", "Failed")
