"""The content of the three Grafana dashboards; `generate_dashboards.py` renders it as JSON."""

from __future__ import annotations

from tools.panels import GREEN, RED, YELLOW, Page, Panel, Steps

_OF_NAMESPACE = '{mtj_namespace=~"$namespace"}'
_OF_JOB = '{mtj_namespace=~"$namespace", mtj=~"$job"}'
_OF_RUN = '{mtj_namespace=~"$namespace", mtj=~"$job", run=~"$run"}'
_NAMESPACES = ("namespace", "label_values(memtune_job_oom_retries, mtj_namespace)")
_FULL: Steps = ((0.0, GREEN), (0.94, YELLOW), (0.95, RED))
_PIECES: Steps = ((0.0, GREEN), (0.15, YELLOW), (0.25, RED))
_ANY: Steps = ((0.0, GREEN), (1.0, YELLOW), (3.0, RED))


def _used(which: str, of_peak: str = "") -> str:
    """The memory in use on each GPU; only the allocator's on a shared GPU."""
    reserved = f"memtune_hbm_{of_peak}reserved_bytes{which}"
    return f"{reserved} + (memtune_hbm_non_torch_bytes{which} or {reserved} * 0)"


FLEET = Page(
    name="fleet",
    title="MemTune / Fleet",
    description="All jobs: use of GPU memory, cost of probes, and training time saved by recovery.",
    variables=(_NAMESPACES,),
    panels=(
        Panel(
            "GPU-seconds of probes",
            "GPU-seconds that probes of existing jobs used since the operator started.",
            "s",
            ((f"sum(memtune_probe_gpu_seconds_total{_OF_NAMESPACE}) or vector(0)", "probes"),),
            kind="stat",
            width=8,
        ),
        Panel(
            "GPU-seconds of continued attempts",
            "GPU-seconds in the selected range of attempts that resumed from a checkpoint.",
            "s",
            (
                (
                    f"15 * sum(sum_over_time((count by (mtj_namespace, mtj) (memtune_hbm_total_bytes{_OF_NAMESPACE}) "
                    "and on (mtj_namespace, mtj) memtune_job_continues == 1)[$__range:15s])) or vector(0)",
                    "continued",
                ),
            ),
            kind="stat",
            width=8,
        ),
        Panel(
            "Recoveries",
            "Relaunches of existing jobs after an out-of-memory.",
            "short",
            ((f"sum(mtj:memtune_job_oom_retries:max{_OF_NAMESPACE}) or vector(0)", "recoveries"),),
            kind="stat",
            thresholds=_ANY,
            width=8,
        ),
        Panel(
            "Jobs by phase",
            "Jobs in all namespaces that the operator watches, by phase.",
            "short",
            (("sum by (phase) (memtune_jobs)", "{{phase}}"),),
            is_stacked=True,
        ),
        Panel(
            "HBM of all training GPUs",
            "Capacity of the GPUs of all attempts, memory allocated from the driver, and memory in use at the peak.",
            "bytes",
            (
                (f"sum(memtune_hbm_total_bytes{_OF_NAMESPACE})", "capacity"),
                (f"sum({_used(_OF_NAMESPACE)})", "allocated from the driver"),
                (f"sum(memtune_hbm_peak_active_bytes{_OF_NAMESPACE})", "in use at the peak"),
            ),
            dashed=("capacity",),
        ),
        Panel(
            "Wasted HBM",
            "Memory that the allocators reserved beyond their peak use: the cost of fragmentation.",
            "bytes",
            (
                (
                    f"sum by (mtj_namespace, mtj) (rank:memtune_hbm_wasted_bytes{_OF_NAMESPACE})",
                    "{{mtj_namespace}}/{{mtj}}",
                ),
            ),
            is_stacked=True,
        ),
        Panel(
            "Fullest GPU of each job",
            "Used share of its memory. A plan is launched only if a probe left the headroom free (6% by default).",
            "percentunit",
            (
                (
                    f"max by (mtj_namespace, mtj) (rank:memtune_hbm_used:ratio{_OF_NAMESPACE})",
                    "{{mtj_namespace}}/{{mtj}}",
                ),
            ),
            thresholds=_FULL,
        ),
    ),
)

JOB = Page(
    name="job",
    title="MemTune / Job",
    description="One job: measured and predicted memory, speed, and the ranks of its runs.",
    variables=(
        _NAMESPACES,
        ("job", 'label_values(memtune_job_oom_retries{mtj_namespace=~"$namespace"}, mtj)'),
        ("run", f"label_values(memtune_hbm_total_bytes{_OF_JOB}, run)"),
    ),
    marks=(
        f"max by (run) (memtune_plan_info{_OF_JOB}) unless max by (run) (memtune_plan_info{_OF_JOB} offset 1m)",
        "{{run}}",
    ),
    panels=(
        Panel(
            "Recoveries",
            "Relaunches of the job after an out-of-memory.",
            "short",
            ((f"max(mtj:memtune_job_oom_retries:max{_OF_JOB})", "recoveries"),),
            kind="stat",
            thresholds=_ANY,
        ),
        Panel(
            "Probe budget used",
            "Share of tuning.maxGpuSeconds that the job's probes used.",
            "percentunit",
            ((f"max(mtj:memtune_probe_budget_used_ratio:max{_OF_JOB})", "used"),),
            kind="stat",
            thresholds=((0.0, GREEN), (0.9, YELLOW)),
        ),
        Panel(
            "HBM of the fullest rank against the prediction",
            "Peaks of the steps in the last 1 to 2 minutes: allocated to tensors, reserved by the allocator, and in "
            "use on the device, with the predicted device memory of the current plan and the capacity of the GPU. "
            "Annotations mark the start of an attempt.",
            "bytes",
            (
                (f"max(memtune_hbm_peak_allocated_bytes{_OF_RUN})", "peak allocated"),
                (f"max(memtune_hbm_peak_reserved_bytes{_OF_RUN})", "peak reserved"),
                (f"max({_used(_OF_RUN, of_peak='peak_')})", "peak on the device"),
                (f'max(memtune_predicted_bytes{_OF_JOB[:-1]}, component="device"}})', "predicted"),
                (f"max(memtune_hbm_total_bytes{_OF_RUN})", "capacity"),
            ),
            width=24,
            dashed=("predicted", "capacity"),
        ),
        Panel(
            "Predicted HBM by component",
            "Components of the current plan's predicted peak.",
            "bytes",
            ((f'max by (component) (memtune_predicted_bytes{_OF_JOB[:-1]}, component!="device"}})', "{{component}}"),),
            is_stacked=True,
        ),
        Panel(
            "Measured HBM of the latest run with a report",
            "Peaks over all ranks: allocated to tensors, active, reserved by the allocator, and in use on the device.",
            "bytes",
            ((f"max by (component) (memtune_measured_bytes{_OF_JOB})", "{{component}}"),),
        ),
        Panel(
            "Fragmentation",
            "1 - peak active / peak reserved memory, and inactive split blocks / reserved memory, of each run's worst "
            "rank. Cached memory that can be reused is not counted.",
            "percentunit",
            (
                (f"run:memtune_hbm_peak_fragmentation_ratio:max{_OF_RUN}", "peaks {{run}}"),
                (f"run:memtune_hbm_split_ratio:max{_OF_RUN}", "splits {{run}}"),
            ),
            thresholds=_PIECES,
        ),
        Panel(
            "Peak of every rank",
            "Share of the GPU reserved at the peak of the latest steps, by rank. A rank that is much fuller than the "
            "others is the first to run out of memory.",
            "percentunit",
            (
                (
                    f"max by (rank) (memtune_hbm_peak_reserved_bytes{_OF_RUN} / memtune_hbm_total_bytes{_OF_RUN})",
                    "{{rank}}",
                ),
            ),
            kind="heatmap",
            rows="rank",
            thresholds=_FULL,
        ),
        Panel(
            "Step time",
            "Mean duration of an optimizer step over 5 minutes, on the slowest rank.",
            "s",
            ((f"run:memtune_step_seconds:mean5m{_OF_RUN}", "{{run}}"),),
        ),
        Panel(
            "Tokens per second",
            "Tokens per second over all ranks, averaged over 5 minutes.",
            "short",
            ((f"run:memtune_tokens_per_second:mean5m{_OF_RUN}", "{{run}}"),),
        ),
        Panel(
            "Memory allocated at the end of a step",
            "Should stay constant. Growth over half an hour indicates a leak.",
            "bytes",
            ((f"max by (run) (memtune_hbm_step_end_allocated_bytes{_OF_RUN})", "{{run}}"),),
        ),
        Panel(
            "Allocator retries",
            "Allocations in the last 10 minutes that succeeded only after the allocator freed its cache.",
            "short",
            ((f"sum by (run) (increase(memtune_allocator_retries_total{_OF_RUN}[10m]))", "{{run}}"),),
            thresholds=((0.0, GREEN), (1.0, RED)),
        ),
    ),
)

OPERATOR = Page(
    name="operator",
    title="MemTune / Operator",
    description="The operator: reconcile latency and errors, queue, API requests, and prediction error.",
    variables=(),
    panels=(
        Panel(
            "Reconcile latency",
            "Duration of a reconciliation: median and 99th percentile.",
            "s",
            tuple(
                (
                    f"histogram_quantile({q}, sum by (le) (rate(memtune_reconcile_seconds_bucket[5m])))",
                    f"{float(q):.0%}",
                )
                for q in ("0.5", "0.99")
            ),
            thresholds=((0.0, GREEN), (1.0, YELLOW), (10.0, RED)),
        ),
        Panel(
            "Reconciliations",
            "Completed and failed reconciliations per second.",
            "ops",
            (
                ("sum(rate(memtune_reconcile_seconds_count[5m]))", "completed"),
                ("sum(rate(memtune_reconcile_errors_total[5m])) or vector(0)", "failed"),
            ),
        ),
        Panel(
            "Queue",
            "Jobs waiting to be reconciled. Should return to 0 regularly.",
            "short",
            (("sum(memtune_wakeups_pending)", "jobs"),),
            thresholds=((0.0, GREEN), (10.0, YELLOW), (100.0, RED)),
        ),
        Panel(
            "API calls",
            "Requests to the API server per second, by verb and status code. Code 0: no response.",
            "reqps",
            (("sum by (verb, code) (rate(memtune_api_requests_total[5m]))", "{{verb}} {{code}}"),),
            is_stacked=True,
        ),
        Panel(
            "Probes by outcome",
            "Finished probe runs of existing jobs since the operator started.",
            "short",
            (
                (
                    "sum by (outcome) (memtune_probes_total) "
                    'or label_replace(vector(0), "outcome", "none yet", "", "")',
                    "{{outcome}}",
                ),
            ),
            is_stacked=True,
        ),
        Panel(
            "Prediction error",
            "Measured runs since the operator started, by the difference between measured and predicted device memory.",
            "short",
            (
                (
                    'sum(memtune_prediction_error_ratio_bucket{le="-0.15"}) or vector(0)',
                    "more than 15% below",
                ),
                (
                    'sum(memtune_prediction_error_ratio_bucket{le="0.15"}) '
                    '- sum(memtune_prediction_error_ratio_bucket{le="-0.15"}) or vector(0)',
                    "within 15%",
                ),
                (
                    "sum(memtune_prediction_error_ratio_count) "
                    '- sum(memtune_prediction_error_ratio_bucket{le="0.15"}) or vector(0)',
                    "more than 15% above",
                ),
            ),
            is_stacked=True,
        ),
    ),
)

PAGES = (FLEET, JOB, OPERATOR)
