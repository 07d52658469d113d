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
    description="All jobs: where the GPU memory goes, what finding plans costs and what recovery saves.",
    variables=(_NAMESPACES,),
    panels=(
        Panel(
            "GPU-seconds of probes",
            "What the probes of the jobs that are there have cost, since the operator started.",
            "s",
            ((f"sum(memtune_probe_gpu_seconds_total{_OF_NAMESPACE}) or vector(0)", "probes"),),
            kind="stat",
            width=8,
        ),
        Panel(
            "GPU-seconds of continued attempts",
            "GPU time, in the range shown, of attempts that began from a checkpoint: training that would otherwise "
            "have ended.",
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
            "Relaunches after an out-of-memory, of the jobs that are there.",
            "short",
            ((f"sum(mtj:memtune_job_oom_retries:max{_OF_NAMESPACE}) or vector(0)", "recoveries"),),
            kind="stat",
            thresholds=_ANY,
            width=8,
        ),
        Panel(
            "Jobs by phase",
            "Jobs of all namespaces that the operator watches.",
            "short",
            (("sum by (phase) (memtune_jobs)", "{{phase}}"),),
            is_stacked=True,
        ),
        Panel(
            "HBM of all GPUs that train",
            "What the GPUs of all train runs have, what is taken from the driver, and what was in use at the peaks.",
            "bytes",
            (
                (f"sum(memtune_hbm_total_bytes{_OF_NAMESPACE})", "capacity"),
                (f"sum({_used(_OF_NAMESPACE)})", "taken"),
                (f"sum(memtune_hbm_peak_active_bytes{_OF_NAMESPACE})", "in use at the peak"),
            ),
            dashed=("capacity",),
        ),
        Panel(
            "Wasted HBM",
            "What the allocators held beyond what was in use when most was in use: the price of fragmentation.",
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
            "Share of its memory that is taken. A plan is launched if it was measured to leave its headroom, often 6%.",
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
    description="One job: its memory against the prediction, its speed, and every rank of its runs.",
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
            "Share of its GPU-seconds that the job's probes took.",
            "percentunit",
            ((f"max(mtj:memtune_probe_budget_used_ratio:max{_OF_JOB})", "used"),),
            kind="stat",
            thresholds=((0.0, GREEN), (0.9, YELLOW)),
        ),
        Panel(
            "HBM of the fullest rank against the prediction",
            "Peaks of the steps of the last one to two minutes: in tensors, taken by the allocator, taken on the whole "
            "device; the device memory that was predicted for the plan in force, and what the GPU has. Marks are the "
            "beginnings of attempts.",
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
            "The components that the prediction of the plan in force is made of, at the peak.",
            "bytes",
            ((f'max by (component) (memtune_predicted_bytes{_OF_JOB[:-1]}, component!="device"}})', "{{component}}"),),
            is_stacked=True,
        ),
        Panel(
            "Measured HBM of the newest run that reported",
            "Peaks over all ranks: in tensors, in blocks in use, taken by the allocator, taken on the whole device.",
            "bytes",
            ((f"max by (component) (memtune_measured_bytes{_OF_JOB})", "{{component}}"),),
        ),
        Panel(
            "Fragmentation",
            "1 less peak active over peak reserved memory, and split pieces over reserved memory; the worst rank of "
            "each run. What an ordinary cache holds does not count.",
            "percentunit",
            (
                (f"run:memtune_hbm_peak_fragmentation_ratio:max{_OF_RUN}", "peaks {{run}}"),
                (f"run:memtune_hbm_split_ratio:max{_OF_RUN}", "splits {{run}}"),
            ),
            thresholds=_PIECES,
        ),
        Panel(
            "Peak of every rank",
            "Share of the GPU that was reserved at the peak of the newest steps, one row for each rank. Ranks should "
            "look alike; one that does not is what the job dies of.",
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
            "Mean seconds of an optimizer step in five minutes, of the slowest rank.",
            "s",
            ((f"run:memtune_step_seconds:mean5m{_OF_RUN}", "{{run}}"),),
        ),
        Panel(
            "Tokens per second",
            "Tokens over all ranks, mean of the steps of five minutes.",
            "short",
            ((f"run:memtune_tokens_per_second:mean5m{_OF_RUN}", "{{run}}"),),
        ),
        Panel(
            "Memory left at the end of a step",
            "Should be flat. A line that climbs for half an hour is a leak.",
            "bytes",
            ((f"max by (run) (memtune_hbm_step_end_allocated_bytes{_OF_RUN})", "{{run}}"),),
        ),
        Panel(
            "Allocator retries",
            "Times in ten minutes that the allocator had to give back its cache before an allocation succeeded.",
            "short",
            ((f"sum by (run) (increase(memtune_allocator_retries_total{_OF_RUN}[10m]))", "{{run}}"),),
            thresholds=((0.0, GREEN), (1.0, RED)),
        ),
    ),
)

OPERATOR = Page(
    name="operator",
    title="MemTune / Operator",
    description="The operator itself: is it quick, does it fail, does it keep up, how good are its predictions.",
    variables=(),
    panels=(
        Panel(
            "Reconcile latency",
            "Time of one look at a job: half of them, and 99 of 100, are at least as quick.",
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
            "Looks at jobs",
            "Looks that came to their end, and looks that were broken off, each second.",
            "ops",
            (
                ("sum(rate(memtune_reconcile_seconds_count[5m]))", "finished"),
                ("sum(rate(memtune_reconcile_errors_total[5m])) or vector(0)", "broken off"),
            ),
        ),
        Panel(
            "Queue",
            "Jobs that wait to be looked at. Should fall to none again and again.",
            "short",
            (("sum(memtune_wakeups_pending)", "jobs"),),
            thresholds=((0.0, GREEN), (10.0, YELLOW), (100.0, RED)),
        ),
        Panel(
            "API calls",
            "Requests to the API server each second; code 0 had no answer.",
            "reqps",
            (("sum by (verb, code) (rate(memtune_api_requests_total[5m]))", "{{verb}} {{code}}"),),
            is_stacked=True,
        ),
        Panel(
            "Probes by outcome",
            "Probe runs that ended, of the jobs that are there, since the operator started.",
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
            "Measured runs by how far the device memory that they took was from what was predicted for them. Counted "
            "since the operator started.",
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
