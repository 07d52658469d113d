"""A status or report written by others may hold anything: it still leads to a decision."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_situations import probed
from hypothesis import given, settings
from hypothesis import strategies as st
from malformed_texts import texts
from simulated_cluster import SimulatedCluster
from small_jobs import make_job

from memtune.api.status import load_status
from memtune.controller import Observed, decide
from memtune.wire.exit_codes import EXIT_CODES
from memtune.wire.report import Ending, Memory, Phase

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    """Return the status of a job that is well under way."""
    return probed(make_job(), factor=1.25).status


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_a_status_edited_by_hand_is_survived(written: dict[str, Any], data: st.DataObject) -> None:
    edited = dict(written)
    for name in data.draw(st.lists(st.sampled_from(sorted(written)), max_size=3)):
        edited[name] = data.draw(json_values)
    if data.draw(st.booleans()):
        edited["probes"] = [{**probe, "plan": "bf16-z9-none-mb1x1"} for probe in written["probes"]]
    decision = decide(make_job(), Observed(status=edited), data.draw(st.floats(allow_nan=True)))
    assert load_status(decision.status.model_dump(mode="json", by_alias=True, exclude_none=True)) == decision.status


@pytest.mark.parametrize("kind", ["probe", "train"])
def test_a_run_number_without_a_successor_is_ignored(written: dict[str, Any], kind: str) -> None:
    records = {"probe": "probes", "train": "attempts"}[kind]
    last = {**written[records][-1], "name": f"tiny-{kind}-10000", "number": 10_000}
    status = decide(make_job(), Observed(status={**written, records: [last]}), 1_700_000_000.0).status
    assert not getattr(status, records) or getattr(status, records)[-1].number < 100
    assert not [each for each in status.conditions if each.status == "True" and each.type in ("Stalled", "Failed")]


counts = st.none() | st.integers(0, 2**60) | st.sampled_from([0, 1, 2**20, 2**33])
rates = st.none() | st.floats(0, 2.0**60) | st.sampled_from([5e-324, 1e-300, 0.0])
garbage: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    memory=st.builds(Memory, *[counts] * 9),
    step_seconds=rates,
    tokens_per_second=rates,
    steps=counts,
    checkpoint_samples=counts,
    checkpoint_format=st.none() | st.sampled_from(["dcp", "deepspeed", "x"]),
    phase=st.none() | st.sampled_from(list(Phase)),
    message=texts(300),
    log_tail=texts(50),
)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.sampled_from([Ending.SUCCEEDED, Ending.DEVICE_OOM, Ending.HOST_OOM]), garbage, garbage)
def test_garbage_in_reports_is_survived(ending: Ending, first: dict[str, Any], second: dict[str, Any]) -> None:
    cluster = SimulatedCluster(make_job())
    for report in (first, second, {}, {}):
        cluster.reconcile()
        for pod in list(cluster.pods.values()):
            cluster.start(pod.run)
            if pod.is_running:
                cluster.end(pod, EXIT_CODES.get(ending, 0), cluster.report(pod, ending, **report))
        cluster.reconcile()
    assert load_status(cluster.status)
