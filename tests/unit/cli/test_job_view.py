"""The view of a job from its object alone: outcomes, budgets, next actions, and objects with any content."""

from __future__ import annotations

from typing import Any

import pytest
from job_with_history import (
    GIB,
    MESSAGE,
    NOW_SECONDS,
    OUT_OF_MEMORY,
    TOTAL_BYTES,
    WON,
    ended_well,
    job_with_history,
    still_probing,
)

from memtune.controller.messages import replaced_batch
from memtune_cli.input.job_view import Budget, error_ratio, job_view_of, measured_bytes, run_seconds
from memtune_cli.views.job_page import page
from memtune_cli.views.next_step import next_step
from memtune_cli.views.report_page import html_page
from memtune_cli.views.screen import Screen
from memtune_cli.views.status_diff import saying, status_changes, without_shown


def changed(part: str, place: int, **fields: Any) -> dict[str, Any]:
    """Return the told job with fields of one record replaced."""
    records = [dict(record) for record in job_with_history()["status"][part]]
    records[place] |= fields
    return job_with_history(**{part: records})


def test_a_view_summarizes_the_status() -> None:
    view = job_view_of(job_with_history())
    assert (view.namespace, view.name, view.world, view.is_over) == ("research", "llama-7b", 8, False)
    assert view.usable_bytes == TOTAL_BYTES
    assert view.why == WON
    assert [view.outcome(run) for run in view.runs] == [
        "fits",
        "fits",
        "ran out of GPU memory",
        "ran out of GPU memory",
        "running",
    ]
    assert [view.is_winner(run) for run in view.status.probes] == [False, True, False]
    assert view.live_run == view.status.attempts[1]
    assert view.checkpoint == "102,400 samples in /checkpoints, saved by attempt 1, as deepspeed"
    assert view.recoveries == "1 of at most 4 after an out-of-memory, 0 of at most 10 after a disruption"


def test_measured_is_compared_with_predicted_only_where_the_run_lived() -> None:
    view = job_view_of(job_with_history())
    assert [error_ratio(run) for run in view.status.probes] == [
        pytest.approx(57.0 / 55.8 - 1, abs=1e-6),
        pytest.approx(69.4 / 67.9 - 1, abs=1e-6),
        None,
    ]
    died_early = job_view_of(changed("probes", 0, verdict="user-error"))
    assert error_ratio(died_early.status.probes[0]) is None
    assert measured_bytes(view.status.probes[2]) == view.status.probes[2].demanded_bytes
    assert run_seconds(view.status.probes[0], NOW_SECONDS) == 90
    assert run_seconds(view.status.attempts[1], NOW_SECONDS) == 600


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"allocatorRetries": 2}, "too tight: the allocator had to retry"),
        ({"peakBytes": {**job_with_history()["status"]["probes"][0]["peakBytes"], "device": int(0.98 * TOTAL_BYTES)}},
         "too tight: 2.0% free of 6%"),
        ({"pruned": "speed"}, "fits, too slow to win"),
        ({"pruned": "memory"}, "fits, too large to win"),
        ({"verdict": "plan-not-applied"}, "did not apply its plan"),
        ({"verdict": None}, "stopped"),
        ({"verdict": None, "endedAt": None}, "running"),
        ({"verdict": None, "endedAt": None, "startedAt": None}, "starting"),
    ],
)  # fmt: skip
def test_the_result_of_a_probe_is_short(fields: dict[str, Any], outcome: str) -> None:
    view = job_view_of(changed("probes", 0, **fields))
    assert view.outcome(view.status.probes[0]) == outcome


def test_a_run_is_judged_by_the_memory_its_gpu_had_then() -> None:
    peaks = {name: int(0.6 * size) for name, size in job_with_history()["status"]["probes"][0]["peakBytes"].items()}
    shrunk = changed("attempts", 1, peakBytes=peaks, verdict="device-oom", endedAt="2026-03-01T13:59:00Z")
    view = job_view_of(shrunk)
    assert view.usable_bytes == int(0.6 * TOTAL_BYTES), "what the job has to do with now"
    assert [view.outcome(probe) for probe in view.status.probes[:2]] == ["fits", "fits"]
    assert view.free_share(view.status.probes[1]) == pytest.approx(1 - 69.4 * GIB / TOTAL_BYTES)
    assert [view.usable_by(run) for run in view.runs] == [*[TOTAL_BYTES] * 4, int(0.6 * TOTAL_BYTES)]


def test_the_bar_of_the_probes_ends_where_the_budget_does() -> None:
    # 4,800 GPU-seconds less 1,440 pay for four more of 720 + 5 x 8, and maxProbes allows one.
    assert job_view_of(still_probing()).budget == Budget(
        2, most=3, allowed=3, spent_seconds=1_440, allowed_seconds=4_800
    )
    roomy = still_probing()
    roomy["spec"]["tuning"]["maxProbes"] = 12
    assert job_view_of(roomy).budget == Budget(2, 6, 12, 1_440, 4_800)
    assert job_view_of(job_with_history()).budget == Budget(3, 3, 3, 2_160, 4_800), (
        "once a plan is chosen there are no more"
    )


def test_only_measurements_count_as_measured() -> None:
    view = job_view_of(job_with_history())
    assert [probe.verdict for probe in view.status.probes] == ["succeeded", "succeeded", "device-oom"]
    assert view.measured_plans == 2
    assert job_view_of(changed("probes", 1, verdict="plan-not-applied")).measured_plans == 1


def test_a_probe_of_an_earlier_job_says_so_and_whether_it_is_stale() -> None:
    told = changed("probes", 0, measuredBy="before", torch="2.6.0")
    told["status"]["probes"][1] = {**told["status"]["probes"][1], "torch": "2.9.1"}
    shown = "\n".join(page(Screen(160, False, False), job_view_of(told), NOW_SECONDS))
    assert "by job before, stale" in shown
    told["status"]["probes"][0]["torch"] = "2.9.1"
    shown = "\n".join(page(Screen(160, False, False), job_view_of(told), NOW_SECONDS))
    assert "by job before" in shown
    assert "stale" not in shown


def test_an_out_of_memory_says_in_which_phase() -> None:
    view = job_view_of(changed("attempts", 0, phase="backward"))
    assert view.outcome(view.status.attempts[0]) == "ran out of GPU memory in backward"


def test_a_training_ended_early_by_its_script_is_marked() -> None:
    view = job_view_of(ended_well(trainedSamples=240_000, ownBatch=64))
    assert [view.outcome(attempt) for attempt in view.status.attempts][-1] == "ended by its script"
    assert view.samples == "240,000 of 640,000 when attempt 2 ended"
    assert job_view_of(ended_well()).outcome(view.status.attempts[-1]) == "trained to its end"
    said = "\n".join(page(Screen(140, colours=False, unicode=True), view, 0.0))
    assert "Samples  240,000 of 640,000 when attempt 2 ended" in said
    batch = "an optimizer step takes the 256 samples of training.globalBatchSize, the script's own numbers make it 64"
    assert f"Batch  {batch}" in said
    html = html_page(view, [], [], [], 0.0)
    assert "Samples: 240,000 of 640,000 when attempt 2 ended." in html
    assert "numbers make it 64; a learning-rate schedule computed from those ends after the training: " in html


def test_events_of_one_second_are_in_causal_order() -> None:
    job, second = ended_well(), "2026-03-01T10:00:00Z"
    for each in job["status"]["conditions"]:
        each["lastTransitionTime"] = second
    for each in (*job["status"]["probes"], *job["status"]["attempts"]):
        each.update(startedAt=second, endedAt=second)
    html = html_page(job_view_of(job), [], [], [], 0.0)
    told = html[html.index("<ol class=chronicle>") :]
    order = ("is predicted", "probe 1 (", "probe 2 (", " won: ", "attempt 1 trains", "attempt 1 (", "attempt 2 trains")
    places = [told.index(each) for each in (*order, "attempt 2 (")]
    assert places == sorted(places)


def test_before_the_first_probe_its_cost_is_that_of_the_prediction() -> None:
    job = still_probing()
    job["status"] |= {"probes": [], "gpuSecondsSpent": 0}
    job["spec"]["tuning"]["maxProbes"] = 40
    # A step of 256 x 4,096 tokens at 32,799 a second takes 31.97 s; three steps of two of 32 micro-batches, and 35 s
    # around them, on 8 GPUs: 328 GPU-seconds.
    assert job_view_of(job).budget == Budget(0, 4_800 // 328, 40, 0, 4_800)


@pytest.mark.parametrize(("mode", "plan"), [("PredictOnly", None), ("Fixed", "bf16-z2-none-mb1x32")])
def test_where_nothing_is_probed_there_is_no_budget(mode: str, plan: str | None) -> None:
    job = job_with_history(probes=None)
    job["spec"]["tuning"] = {"mode": mode, **({"plan": plan} if plan else {})}
    assert job_view_of(job).budget is None


def test_memory_is_shown_in_the_unit_of_its_gpu() -> None:
    assert job_view_of(job_with_history()).amount(512 * 2**20) == "0.5 GiB"
    small = job_view_of(job_with_history(probes=None, attempts=None, prediction=None))
    assert (small.usable_bytes, small.amount(166 * 2**20)) == (0, "166 MiB")


def test_memory_left_by_a_rehearsal_is_shown_beside_the_gpus() -> None:
    job = job_with_history()
    job["spec"]["resources"] |= {"device": "virtual", "shrink": {"by": "50%", "afterStep": 3}}
    whole = job["status"]["attempts"][0]["peakBytes"]["total"]
    last = job["status"]["attempts"][-1] | {
        "peakBytes": job["status"]["attempts"][0]["peakBytes"] | {"total": whole // 2}
    }
    job["status"]["attempts"][-1] = last
    assert "80GB of 79.2 GiB (39.6 GiB are left), 256 sequences" in job_view_of(job).subject


def test_each_phase_says_what_happens_next() -> None:
    said = next_step(job_view_of(job_with_history()))
    assert said.endswith("it would resume from the newest checkpoint on a plan that fits (3 left)")
    assert next_step(job_view_of(still_probing())) == (
        "the running probe ends; then the fastest measured plan that leaves 6% free is launched"
    )
    between = still_probing()
    between["status"]["probes"].pop()
    assert next_step(job_view_of(between)).startswith("up to 1 more probe; then the fastest measured plan")
    assert "retry.maxOomRetries is spent" in next_step(job_view_of(job_with_history(oomRetries=4)))
    assert next_step(job_view_of(ended_well())) == "nothing: the job is over"
    assert "`memtune logs llama-7b`" in next_step(job_view_of(job_with_history(phase="Failed")))
    for phase in ("Pending", "Predicting", "Launching", "Recovering", "Suspended"):
        assert next_step(job_view_of(job_with_history(phase=phase)))


def test_without_a_checkpoint_an_out_of_memory_is_the_end() -> None:
    job = job_with_history()
    del job["spec"]["checkpoint"]
    assert "there is no spec.checkpoint" in next_step(job_view_of(job))


def test_without_a_reported_checkpoint_none_is_claimed() -> None:
    fresh = job_with_history(attempts=job_with_history()["status"]["attempts"][1:])
    assert job_view_of(fresh).checkpoint == "the newest complete one in /checkpoints, from which attempt 2 went on"
    assert job_view_of(still_probing()).checkpoint == "in /checkpoints; none is known of until a run ends"
    assert (
        job_view_of(job_with_history(phase="Failed", attempts=None)).checkpoint
        == "in /checkpoints; no report names a checkpoint"
    )
    stopped = {**job_with_history()["status"]["attempts"][1], "endedAt": "2026-03-01T13:59:00Z", "resume": "no"}
    assert (
        job_view_of(job_with_history(attempts=[stopped])).checkpoint == "in /checkpoints; no report names a checkpoint"
    )


def test_the_reason_for_waiting_comes_first() -> None:
    stalled = {
        "type": "Stalled",
        "status": "True",
        "lastTransitionTime": "2026-03-01T10:00:00Z",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
    }
    assert "0/3 nodes are available" in next_step(job_view_of(job_with_history(conditions=[stalled])))
    assert "0/3" not in next_step(job_view_of(job_with_history(conditions=[stalled], phase="Succeeded")))


def test_changes_are_printed_once() -> None:
    before, after = job_view_of(still_probing()), job_view_of(job_with_history())
    assert saying(None, after) == [f"[Running] {MESSAGE}"]
    assert status_changes(after, after) == []
    assert status_changes(before, after) == [
        "probe 3 (bf16-z2-none-mb2x16) ran out of GPU memory: "
        "tried to allocate 3.62 GiB on rank 0 with 78.3 GiB in use, in backward",
        f"attempt 1 (bf16-z1-none-mb1x32) ran out of GPU memory: {OUT_OF_MEMORY}",
        f"[Running] {MESSAGE}",
    ]
    died = f"attempt 1 (bf16-z1-none-mb1x32) ran out of GPU memory: {OUT_OF_MEMORY}"
    recovering = job_view_of(
        job_with_history(phase="Recovering", message=f"{died}; the next attempt follows after a pause")
    )
    assert died not in status_changes(before, recovering), "what the message says is not said twice"
    assert saying(before, recovering, [died]) == ["[Recovering] the next attempt follows after a pause"]
    assert saying(before, after, [died, MESSAGE]) == ["[Running]"]
    failed = job_view_of(job_with_history(phase="Failed", message=f"{died}. No probe is left: all were tried"))
    assert without_shown(f"{died}; its last lines: KeyError", [died]) == "its last lines: KeyError"
    assert without_shown(f"{died}, and more", [died]) == f"{died}, and more"
    assert saying(before, failed, [died]) == ["[Failed] No probe is left: all were tried"]
    whole = f"{died}. No probe is left: all were tried"
    assert saying(before, failed, [died, whole]) == ["[Failed]"], "the event had all of it"
    assert saying(job_view_of(job_with_history(message="it was")), after, [MESSAGE]) == []


def test_advice_for_the_script_is_printed_once() -> None:
    warned = "save below $MEMTUNE_CHECKPOINT_PATH"
    attempt = changed("attempts", -1, verdict="succeeded", endedAt="2026-11-26T16:00:00Z", message=warned)
    status = {**attempt["status"], "phase": "Succeeded", "ownBatch": 3}
    batch = replaced_batch(job_view_of({**attempt, "status": status}).status, job_view_of(attempt).job)
    after = job_view_of({**attempt, "status": {**status, "message": f"it has ended well; {batch}; {warned}"}})
    before = job_view_of(still_probing())
    events = [f"attempt 2 (x): {warned}", f"probe 1 (x): {batch}"]
    assert saying(before, after, ["it has ended well"], events) == ["[Succeeded]"]
    assert saying(before, after, [], events) == ["[Succeeded] it has ended well"]
    assert saying(before, after, ["it has ended well"], events[1:]) == [f"[Succeeded] {batch}; {warned}"]
    assert sum(line.count(warned) for line in status_changes(before, after)) == 1
    assert not any("succeeded" in line for line in status_changes(before, after)), "the job says it"
    stopped = {**attempt["status"]["attempts"][-1], "verdict": "user-error"}
    failed = {**status, "attempts": [stopped], "ownBatch": None, "message": f"it failed; {warned}"}
    assert saying(before, job_view_of({**attempt, "status": failed}), [], events) == [
        f"[Succeeded] it failed; {warned}"
    ]


@pytest.mark.parametrize("status", [None, [], "odd", {"phase": 3}, {"probes": [{"name": 1}, 2]}, {"plan": "x"}])
def test_any_status_can_be_viewed(status: Any) -> None:
    view = job_view_of({**job_with_history(), "status": status})
    assert view.status.phase == "Pending"
    assert next_step(view)


def test_a_spec_that_cannot_be_read_leaves_the_status() -> None:
    view = job_view_of({**job_with_history(), "spec": {"training": 3}})
    assert view.job is None
    assert (view.name, view.status.phase, len(view.status.attempts)) == ("llama-7b", "Running", 2)
    assert (view.budget, view.checkpoint) == (None, "")
    assert next_step(view)
