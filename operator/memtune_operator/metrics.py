"""Prometheus metrics of the operator: outcomes and cost of jobs, and the health of the operator itself.

Gauges are read from the newest status of each job and removed with the job. Counters count what is new in a status
compared with the one before: only the operator writes statuses, so nothing is missed across restarts.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from memtune.api import Job
from memtune.api.status import Phase, RunStatus, Status
from memtune.controller.records import ended_as, has_ended, read_status
from memtune.controller.verdict import Verdict
from memtune_operator.backend import Key, Snapshot

_JOB = ("mtj_namespace", "mtj")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RATIOS = (-0.5, -0.25, -0.15, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5)


class _Seen(NamedTuple):
    job: Job
    status: Status


class Metrics:
    """The metrics registry; implements the reconciler's Watcher."""

    def __init__(self, started_at: float = 0.0) -> None:
        self.registry = registry = CollectorRegistry()
        self._jobs: dict[Key, _Seen] = {}
        registry.register(_Jobs(self._jobs))
        self._probes = Counter("memtune_probes", "Finished probe runs.", (*_JOB, "outcome"), registry=registry)
        self._oom_retries = Counter(
            "memtune_oom_retries",
            "Relaunches after running out of memory, by rung.",
            (*_JOB, "rung"),
            registry=registry,
        )
        self._probe_gpu_seconds = Counter(
            "memtune_probe_gpu_seconds", "GPU-seconds of finished probe runs.", _JOB, registry=registry
        )
        self._error = Histogram(
            "memtune_prediction_error_ratio",
            "Measured over predicted device memory, minus 1, of successful runs that had the longest sequences.",
            _JOB,
            registry=registry,
            buckets=_RATIOS,
        )
        self._seconds = Histogram(
            "memtune_reconcile_seconds", "Duration of a reconciliation.", registry=registry, buckets=_SECONDS
        )
        self._errors = Counter("memtune_reconcile_errors", "Failed reconciliations.", _JOB, registry=registry)
        self._pending = Gauge("memtune_wakeups_pending", "Jobs waiting to be reconciled.", registry=registry)
        self._leader = Gauge(
            "memtune_operator_leader",
            "1 if this process reconciles jobs, 0 while it waits for the Lease.",
            registry=registry,
        )
        started = Gauge(
            "memtune_operator_start_time_seconds",
            "Start time of this process, in seconds since the epoch.",
            registry=registry,
        )
        started.set(started_at)
        self._requests = Counter(
            "memtune_api_requests",
            "Requests to the API server; code 0 means no response.",
            ("verb", "code"),
            registry=registry,
        )

    def serve(self, port: int) -> None:
        """Serve the metrics in a thread."""
        start_http_server(port, registry=self.registry)

    def leads(self, pending: Callable[[], int]) -> None:
        """Mark this process as the leader; ``pending`` returns the number of waiting jobs."""
        self._leader.set(1)
        self._pending.set_function(pending)

    def request(self, verb: str, code: int) -> None:
        """Count a request to the API server."""
        self._requests.labels(verb, str(code)).inc()

    def reconciled(self, before: Snapshot, after: Snapshot, seconds: float) -> None:
        """Count what is new in the status and update the job's gauges."""
        self._seconds.observe(seconds)
        if (job := after.job) is None:
            return
        # An older CRD may have pruned fields of the status.
        key, status = Key(job.metadata.namespace, job.metadata.name), read_status(after.status)
        self._jobs[key] = _Seen(job, status)
        if before.manifest["metadata"].get("uid") == job.metadata.uid:
            self._count(key, read_status(before.status), status)

    def failed(self, key: Key) -> None:
        """Count a failed reconciliation."""
        self._errors.labels(*key).inc()

    def gone(self, key: Key) -> None:
        """Remove every series of the job."""
        self._jobs.pop(key, None)
        for metric in (self._probes, self._oom_retries, self._probe_gpu_seconds, self._error, self._errors):
            metric.remove_by_labels(dict(zip(_JOB, key, strict=True)))

    def _count(self, key: Key, before: Status, after: Status) -> None:
        probes = list(_newly_ended(before.probes, after.own_probes))
        for run in probes:
            # A run that the operator stopped has no verdict but used GPU time.
            self._probes.labels(*key, run.verdict or "stopped").inc()
            self._probe_gpu_seconds.labels(*key).inc(run.gpu_seconds)
        for run in (*probes, *_newly_ended(before.attempts, after.attempts)):
            if (error := _error_ratio(run)) is not None:
                self._error.labels(*key).observe(error)
        known = {attempt.number for attempt in before.attempts}
        for attempt in after.attempts:
            if attempt.number not in known and attempt.rung:
                self._oom_retries.labels(*key, attempt.rung).inc()


def _newly_ended(before: Iterable[RunStatus], after: Iterable[RunStatus]) -> Iterator[RunStatus]:
    ended = {run.number for run in before if has_ended(run)}
    return (run for run in after if has_ended(run) and run.number not in ended)


def _error_ratio(run: RunStatus) -> float | None:
    # A run that failed never reached its full memory use.
    is_whole = ended_as(run, Verdict.SUCCEEDED) and run.length_covered is not False
    if not (is_whole and run.peak_bytes and run.predicted_bytes):
        return None
    return run.peak_bytes.device / run.predicted_bytes - 1


class _Jobs(Collector):
    """The gauges that are read from the jobs' current statuses."""

    def __init__(self, jobs: Mapping[Key, _Seen]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Build the metric families for a scrape."""
        jobs = dict(self._jobs)  # scrapes run in another thread while jobs come and go
        phases = Tally(seen.status.phase for seen in jobs.values())
        counts = (((phase,), phases[phase]) for phase in get_args(Phase))
        yield _family("memtune_jobs", "Jobs by phase.", ("phase",), counts)
        for name, text, labels, read in _GAUGES:
            samples = (((*key, *rest), value) for key, seen in jobs.items() for rest, value in read(seen))
            yield _family(name, text, (*_JOB, *labels), samples)


_Samples = Iterable[tuple[tuple[str, ...], float]]


def _family(name: str, text: str, labels: tuple[str, ...], samples: _Samples) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _oom_retries(seen: _Seen) -> _Samples:
    yield (), seen.status.oom_retries


def _continues(seen: _Seen) -> _Samples:
    if attempts := seen.status.attempts:
        yield (), attempts[-1].resume != "no"


def _budget_used(seen: _Seen) -> _Samples:
    yield (), seen.status.gpu_seconds_spent / seen.job.max_gpu_seconds


def _budget_spent(seen: _Seen) -> _Samples:
    yield (), seen.status.probing_ended == "max-gpu-seconds"


def _headroom(seen: _Seen) -> _Samples:
    yield (), seen.job.spec.tuning.headroom_ratio


def _predicted(seen: _Seen) -> _Samples:
    if prediction := seen.status.prediction:
        yield from (((component.name,), component.expected) for component in prediction.components)
        yield ("device",), prediction.device_bytes.expected


def _measured(seen: _Seen) -> _Samples:
    return _newest_peak((*seen.status.own_probes, *seen.status.attempts))


def _emulated(seen: _Seen) -> _Samples:
    return _newest_peak(seen.status.emulations)


def _newest_peak(runs: Iterable[RunStatus]) -> _Samples:
    peaks = [run.peak_bytes for run in runs if run.peak_bytes]
    for name in ("allocated", "active", "reserved", "device") if peaks else ():
        yield (name,), getattr(peaks[-1], name)


_GAUGES: tuple[tuple[str, str, tuple[str, ...], Callable[[_Seen], _Samples]], ...] = (
    ("memtune_job_oom_retries", "Relaunches of the job after running out of memory.", (), _oom_retries),
    ("memtune_job_continues", "1 if the newest attempt resumed from a checkpoint, else 0.", (), _continues),
    ("memtune_probe_budget_used_ratio", "Used share of the job's GPU-seconds for probes.", (), _budget_used),
    (
        "memtune_probe_budget_spent",
        "1 if probing ended because the budget was spent, else 0.",
        (),
        _budget_spent,
    ),
    ("memtune_job_headroom_ratio", "Share of a GPU that the job's plans must leave free.", (), _headroom),
    ("memtune_predicted_bytes", "Predicted peak memory.", ("component",), _predicted),
    ("memtune_emulated_bytes", "Peak memory of the newest emulated probe with a result.", ("component",), _emulated),
    ("memtune_measured_bytes", "Peak memory of the newest run with a measurement.", ("component",), _measured),
)
