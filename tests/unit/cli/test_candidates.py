"""A report's plans and what trying them would have cost, with numbers by hand, as none of them ran."""

from __future__ import annotations

from collections import Counter

from job_with_history import job_with_history

from memtune_cli.input.job_view import job_view_of
from memtune_cli.views.candidates import Group, Reckoned, costs, known_plans


def test_every_plan_of_the_job_is_in_one_group() -> None:
    view = job_view_of(job_with_history())
    plans = known_plans(view)
    groups = Counter(each.group for each in plans)
    assert sum(groups.values()) == len(plans) == len({each.plan for each in plans})
    assert groups[Group.FITS]
    assert groups[Group.CANNOT_FIT]
    unmeasured = job_with_history()
    unmeasured["status"]["probes"] = []
    assert {each.group for each in known_plans(job_view_of(unmeasured))} == set(Group)
    known = {str(each.plan): each for each in plans}
    assert known["bf16-z2-none-mb1x32"].group is Group.FITS
    assert known["bf16-z2-none-mb1x32"].device_bytes == view.status.probes[0].peak_bytes.device  # type: ignore[union-attr]  # it measured
    assert known["bf16-z2-none-mb2x16"].group is Group.CANNOT_FIT, "it ran out of memory"


def test_a_job_that_describes_no_model_has_no_candidates() -> None:
    job = job_with_history()
    job["spec"]["model"] = {"factory": "train:build"}
    assert known_plans(job_view_of(job)) == []
    assert known_plans(job_view_of({**job, "spec": 3})) == []


def test_plans_that_were_not_run_are_charged_at_the_cheapest_probe() -> None:
    job = job_with_history()
    job["status"]["probes"] = [
        {**probe, "gpuSeconds": cost} for probe, cost in zip(job["status"]["probes"], (900, 640, 620), strict=True)
    ]
    view = job_view_of(job)
    plans = known_plans(view)
    tried = {probe.plan for probe in view.status.probes}
    excluded = sum(1 for each in plans if each.group is Group.CANNOT_FIT and str(each.plan) not in tried)
    made, cannot, others, kept = costs(view, plans)
    assert made == Reckoned("The probes that were made", 3, 2_160, "measured")
    assert (cannot.runs, cannot.gpu_seconds) == (excluded, excluded * 620)
    assert (others.runs, others.gpu_seconds) == (len(plans) - 3 - excluded, (len(plans) - 3 - excluded) * 620)
    # 102,400 samples of 4,096 tokens at the 33,790 tokens/s of attempt 1, on 8 GPUs.
    assert round(kept.gpu_seconds) == round(102_400 * 4_096 / 33_790 * 8)


def test_without_a_probe_no_costs_are_estimated() -> None:
    view = job_view_of(job_with_history(probes=None, attempts=None, gpuSecondsSpent=0))
    assert costs(view, known_plans(view)) == []
