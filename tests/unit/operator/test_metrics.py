"""The operator's metrics: names and labels are a contract, and a job's series end with the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from prometheus_client import generate_latest

from memtune.api import load_job
from memtune.api.status import Phase
from memtune.controller import Blocker, Observed
from memtune_operator import metrics as module
from memtune_operator.backend import Key, Snapshot
from memtune_operator.metrics import Metrics

JOB = {
    "apiVersion": "memtune.dev/v1alpha1",
    "kind": "MemoryTunedJob",
    "metadata": {"name": "tiny", "namespace": "research", "uid": "u"},
    "spec": {
        "model": {"architecture": {"hiddenSize": 256, "layers": 2, "heads": 4, "vocabSize": 1000, "ffnSize": 1024}},
        "training": {"globalBatchSize": 4, "sequenceLength": 128},
        "resources": {"gpusPerNode": 1, "gpuMemory": "8Gi", "device": "virtual"},
    },
}
PLAN = "bf16-z1-none-mb4x1"
PEAK = {"allocated": 90, "active": 100, "reserved": 110, "device": 150, "total": 1000}
RECORDED = {"name": "tiny-probe-1", "number": 1, "plan": PLAN, "predictedBytes": 100}
ENDED = {"endedAt": "2026-01-01T00:00:00Z", **RECORDED, "verdict": "succeeded", "peakBytes": PEAK, "gpuSeconds": 30}
COMPONENTS = [{"name": "weights", "lower": 1, "expected": 2, "upper": 3}]
PREDICTION = {
    "plan": PLAN,
    "peakPhase": "backward",
    "deviceBytes": {"lower": 90, "expected": 100, "upper": 120},
    "usableBytes": 1000,
    "components": COMPONENTS,
}


def snapshot(**status: Any) -> Snapshot:
    manifest = {**JOB, "status": {"phase": "Probing", "prediction": PREDICTION, **status}}
    return Snapshot(manifest, Observed(), load_job(manifest))


def lines(metrics: Metrics) -> list[str]:
    text = generate_latest(metrics.registry).decode()
    return [line for line in text.splitlines() if not line.startswith("#") and "_created" not in line]


def told() -> Metrics:
    metrics = Metrics(started_at=1_700_000_000)
    metrics.leads(lambda: 2)
    metrics.request("GET", 200)
    metrics.reconciled(snapshot(), snapshot(probes=[RECORDED]), 0.02)
    attempt = {**RECORDED, "name": "tiny-train-2", "number": 2, "rung": "expandable-segments", "resume": "direct"}
    after = snapshot(probes=[ENDED], attempts=[attempt], oomRetries=1, gpuSecondsSpent=30)
    metrics.reconciled(snapshot(probes=[RECORDED]), after, 0.02)
    metrics.failed(Key("research", "tiny"))
    return metrics


def test_every_series_has_the_name_and_labels_that_dashboards_ask_for() -> None:
    of = 'mtj="tiny",mtj_namespace="research"'
    assert sorted(line for line in lines(told()) if "_bucket" not in line and "_sum" not in line) == sorted(
        [
            *(f'memtune_jobs{{phase="{phase}"}} {float(phase == "Probing")}' for phase in get_args(Phase)),
            f'memtune_probes_total{{{of},outcome="succeeded"}} 1.0',
            f"memtune_prediction_error_ratio_count{{{of}}} 1.0",
            f'memtune_oom_retries_total{{{of},rung="expandable-segments"}} 1.0',
            f"memtune_job_oom_retries{{{of}}} 1.0",
            f"memtune_job_continues{{{of}}} 1.0",
            f"memtune_probe_gpu_seconds_total{{{of}}} 30.0",
            f"memtune_probe_budget_used_ratio{{{of}}} 0.05",
            f"memtune_probe_budget_spent{{{of}}} 0.0",
            f"memtune_job_headroom_ratio{{{of}}} 0.06",
            f'memtune_predicted_bytes{{component="weights",{of}}} 2.0',
            f'memtune_predicted_bytes{{component="device",{of}}} 100.0',
            f'memtune_measured_bytes{{component="allocated",{of}}} 90.0',
            f'memtune_measured_bytes{{component="active",{of}}} 100.0',
            f'memtune_measured_bytes{{component="reserved",{of}}} 110.0',
            f'memtune_measured_bytes{{component="device",{of}}} 150.0',
            "memtune_reconcile_seconds_count 2.0",
            f"memtune_reconcile_errors_total{{{of}}} 1.0",
            'memtune_api_requests_total{code="200",verb="GET"} 1.0',
            "memtune_wakeups_pending 2.0",
            "memtune_operator_leader 1.0",
            "memtune_operator_start_time_seconds 1.7e+09",
        ]
    )


def test_an_operator_that_waits_for_the_lease_does_not_lead() -> None:
    assert "memtune_operator_leader 0.0" in lines(Metrics())


def test_metrics_have_the_headroom_and_whether_the_budget_ended_the_probing() -> None:
    of = 'mtj="tiny",mtj_namespace="research"'
    after = snapshot(probingEnded="max-gpu-seconds")
    assert after.job is not None
    tuning = after.job.spec.tuning.model_copy(update={"headroom": "3%"})
    job = after.job.model_copy(update={"spec": after.job.spec.model_copy(update={"tuning": tuning})})
    metrics = Metrics()
    metrics.reconciled(after, replace(after, job=job), 0.02)
    assert f"memtune_probe_budget_spent{{{of}}} 1.0" in lines(metrics)
    assert f"memtune_job_headroom_ratio{{{of}}} 0.03" in lines(metrics)


def test_more_memory_than_predicted_is_a_positive_error() -> None:
    at_most = {
        edge: told().registry.get_sample_value(
            "memtune_prediction_error_ratio_bucket", {"mtj_namespace": "research", "mtj": "tiny", "le": edge}
        )
        for edge in ("0.25", "0.5")
    }
    assert at_most == {"0.25": 0.0, "0.5": 1.0}


@pytest.mark.parametrize("verdict", ["device-oom", "host-oom", "disrupted", "user-error", None])
def test_a_failed_run_shows_no_peak(verdict: str | None) -> None:
    metrics = Metrics()
    broken = {**ENDED, "verdict": verdict}
    metrics.reconciled(snapshot(probes=[RECORDED]), snapshot(probes=[broken], attempts=[broken]), 0.02)
    assert not [line for line in lines(metrics) if line.startswith("memtune_prediction_error_ratio")]


def test_runs_before_the_operator_started_are_not_counted_again() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.reconciled(snapshot(probes=[ENDED]), snapshot(probes=[ENDED]), 0.02)
    assert not [line for line in lines(metrics) if line.startswith("memtune_probes_total")]


def test_runs_that_ended_without_an_operator_are_counted() -> None:
    metrics = Metrics()
    metrics.reconciled(snapshot(probes=[RECORDED]), snapshot(probes=[ENDED]), 0.02)
    assert 'memtune_probes_total{mtj="tiny",mtj_namespace="research",outcome="succeeded"} 1.0' in lines(metrics)


def test_a_probe_that_the_operator_stopped_took_its_time_all_the_same() -> None:
    metrics = Metrics()
    stopped = {**ENDED, "verdict": None, "gpuSeconds": 7}
    metrics.reconciled(snapshot(probes=[RECORDED]), snapshot(probes=[stopped]), 0.02)
    of = 'mtj="tiny",mtj_namespace="research"'
    assert f'memtune_probes_total{{{of},outcome="stopped"}} 1.0' in lines(metrics)
    assert f"memtune_probe_gpu_seconds_total{{{of}}} 7.0" in lines(metrics)


def test_a_jobs_series_go_with_the_job() -> None:
    metrics = told()
    metrics.gone(Key("research", "tiny"))
    assert not [line for line in lines(metrics) if "tiny" in line]
    assert 'memtune_jobs{phase="Probing"} 0.0' in lines(metrics), "graphs have holes without it"


def test_an_object_that_is_no_job_has_no_series() -> None:
    metrics = Metrics()
    wrong = Snapshot({**JOB}, Observed(), problem=Blocker("SpecInvalid", "spec.model: missing"))
    metrics.reconciled(wrong, wrong, 0.02)
    assert not [line for line in lines(metrics) if "tiny" in line]


def test_a_status_of_which_an_older_crd_keeps_less_than_was_written_is_shown_as_far_as_it_goes() -> None:
    metrics = Metrics()
    less = {name: value for name, value in PEAK.items() if name != "total"}
    after = snapshot(probes=[{**ENDED, "peakBytes": less}], oomRetries=1)
    metrics.reconciled(snapshot(), after, 0.02)
    assert 'memtune_job_oom_retries{mtj="tiny",mtj_namespace="research"} 1.0' in lines(metrics)


def test_a_job_that_goes_during_a_scrape_does_not_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = told()

    def slow(_: Any) -> list[tuple[tuple[str, ...], float]]:
        metrics.gone(Key("research", "tiny"))
        return [((), 1.0)]

    monkeypatch.setattr(module, "_GAUGES", (("memtune_slow", "A gauge that takes its time.", (), slow),))
    assert 'memtune_slow{mtj="tiny",mtj_namespace="research"} 1.0' in lines(metrics)


def test_emulated_probes_have_peaks_of_their_own_and_count_as_no_probe() -> None:
    metrics = Metrics()
    record = {**ENDED, "name": "tiny-emulate-1", "emulated": True, "gpu": "h100-80gb"}
    metrics.reconciled(snapshot(), snapshot(emulations=[record]), 0.02)
    found = lines(metrics)
    of = 'mtj="tiny",mtj_namespace="research"'
    assert f'memtune_emulated_bytes{{component="reserved",{of}}} 110.0' in found
    assert not [line for line in found if line.startswith(("memtune_measured_bytes", "memtune_probes_total"))]
