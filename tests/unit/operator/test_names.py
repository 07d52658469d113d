"""Names are valid for the API server, deterministic and unique."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtune.plans.knobs import SELECTIVE, Precision, Sharding
from memtune.plans.plan import Plan
from memtune.wire.names import job_stem, plan_hash, pod_name, run_name
from memtune.wire.run import RunKind
from memtune_operator.pods.names import run_labels

# A DNS-1123 subdomain, as the API server requires for custom resources. Built from few pieces, so that names similar to
# each other and to those of runs and pods are frequent.
pieces = st.lists(st.sampled_from(["a", "b-", "0", "1-", "x.", "probe-", "train-", "a" * 40]), max_size=5)
job_names = pieces.map(lambda parts: "".join(parts) + "a") | pieces.map(lambda parts: "".join(parts) + "0")
numbers = st.integers(0, 2) | st.integers(0, 99999)
kinds = st.sampled_from(RunKind)

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


@settings(max_examples=40)
@given(job_names, kinds, numbers, numbers)
def test_every_name_is_a_dns_label_and_every_label_a_label(job: str, kind: RunKind, number: int, index: int) -> None:
    # An emulated probe has one pod for all ranks.
    index = 0 if kind is RunKind.EMULATE else index
    for name in (run_name(job, kind, number), pod_name(job, kind, number, index)):
        assert len(name) <= 63
        assert DNS_1035.fullmatch(name)
    for value in run_labels(job, kind, number).values():
        assert len(value) <= 63
        assert LABEL_VALUE.fullmatch(value)


@settings(max_examples=40)
@given(st.tuples(job_names, kinds, numbers, numbers), st.tuples(job_names, kinds, numbers, numbers))
def test_two_pods_never_share_a_name(one: tuple[str, RunKind, int, int], other: tuple[str, RunKind, int, int]) -> None:
    assert (pod_name(*one) == pod_name(*other)) == (one == other)
    assert (run_name(*one[:3]) == run_name(*other[:3])) == (one[:3] == other[:3])


def test_an_ordinary_name_stays_readable() -> None:
    assert pod_name("llama-8b-sft", RunKind.PROBE, 3, 0) == "llama-8b-sft-probe-3-0"


@pytest.mark.parametrize(
    ("job", "stem"),
    [
        ("70b", "j-70b-d1e53e48"),
        ("llama.8b", "llama-8b-17f6c930"),
        ("a" * 46, "a" * 36 + "-6643110c"),
    ],
)
def test_a_long_or_odd_name_keeps_a_prefix_and_gets_a_hash(job: str, stem: str) -> None:
    # Pinned: another stem after an upgrade would make the operator start every run again.
    assert job_stem(job) == stem


def test_names_that_differ_past_the_prefix_or_in_odd_characters_stay_apart() -> None:
    assert len({job_stem(name) for name in ("a" * 60 + "b", "a" * 60 + "c", "x.y", "x-y", "x..y")}) == 5


@pytest.mark.parametrize("number", [-1, 100_000])
def test_a_number_that_has_no_room_in_a_name_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="numbered from 0 to 99999"):
        run_name("job", RunKind.TRAIN, number)


def test_the_hash_of_a_plan_is_unique_and_stable() -> None:
    plan = Plan(Precision.BF16, Sharding.ZERO_2, SELECTIVE, micro_batch=4, accumulation=8)
    assert plan_hash(plan) == plan_hash(Plan.parse(str(plan)))
    assert plan_hash(plan) != plan_hash(plan.with_micro_batch(2))
