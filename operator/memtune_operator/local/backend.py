"""The local backend: the same decisions as in a cluster, with a state directory in place of the API server."""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from memtune.api import Job, SpecError, load_job, reasons
from memtune.api.status import ProbeStatus
from memtune.controller import Blocker, Deletion, JobEvent, Observed
from memtune.controller.observation import RunObservation
from memtune.memory.measured_overhead import JobOverhead
from memtune.wire.run import Run, TraceRun
from memtune_operator import measurements
from memtune_operator.api_errors import ApiError, ErrorKind
from memtune_operator.backend import Key, Snapshot
from memtune_operator.local.command import LocalCommand, command_of, with_python
from memtune_operator.local.runs import LocalRun, write_whole
from memtune_operator.pods import preflight
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.pod_reader import run_of
from memtune_operator.pods.run_objects import run_pods
from memtune_operator.pods.security_policy import Policy

# No policy is enforced: it is the user's own machine, and images and volumes are not used.
_POLICY = Policy(host_path=True, host_network=True, privileged=True, service_accounts=None)
_NO_IMAGE = "local"
_OWN_GPU = "own"
_OF_A_JOB = {"name": str, "uid": str, "generation": int}
_log = logging.getLogger("memtune")


class LocalBackend:
    """One job and its runs, in a state directory from which a later call continues.

    Measurements are cached in ``shared``, where other jobs of this machine find them.
    """

    def __init__(self, directory: Path, tell: Callable[[JobEvent], None], shared: Path) -> None:
        self._directory = directory
        self._measurements = shared / ".measurements.json"
        self._tell = tell
        self._wake: Callable[[], None] = lambda: None
        self._runs: dict[str, LocalRun] = {}
        self._refused: dict[str, str] = {}
        # Not kept between calls: the factory's code may be edited in between, and tracing takes seconds.
        self._trace = ""

    def on_change(self, wake: Callable[[], None]) -> None:
        """Set the callback for when a process ends."""
        self._wake = wake
        runs = [LocalRun(directory, wake) for directory in sorted((self._directory / "runs").glob("*"))]
        self._runs = {run.name: run for run in runs if not run.is_deleted}

    def accept(self, manifest: Manifest) -> Key:
        """Store the job's manifest: the status is kept, and the generation increases if the spec changed."""
        known = self._read()
        manifest = with_python(manifest)
        metadata = {**manifest.get("metadata", {}), "uid": str(uuid4()), "generation": 1}
        if known:
            is_changed = known["spec"] != manifest.get("spec")
            generation = known["metadata"]["generation"] + is_changed
            metadata |= {"uid": known["metadata"]["uid"], "generation": generation}
        self._save({**manifest, "metadata": metadata, "status": known.get("status") or {}})
        return Key(metadata.get("namespace", "default"), metadata["name"])

    def suspend(self) -> None:
        """Suspend the job until it is accepted again."""
        if manifest := self._read():
            self._save({**manifest, "spec": {**manifest["spec"], "suspend": True}})
        self._wake()

    async def stop_orphans(self) -> None:
        """End the processes that an earlier, killed call left running. A run whose report does not tell how it ended
        counts as gone."""
        for run in [run for run in self._runs.values() if run.observe() is None]:
            await run.stop(None)
            if not run.adopt_report():
                del self._runs[run.name]

    async def stop(self) -> None:
        """End all processes: none outlives this program."""
        for run in self._runs.values():
            await run.stop(None)

    async def observe(self, key: Key, now: float) -> Snapshot | None:
        """Return the job as it is on disk, and the processes of its runs."""
        manifest = self._read()
        status = manifest.get("status") or {}
        if not manifest:
            return None
        try:
            job = load_job(manifest)
        except SpecError as error:
            return Snapshot(manifest, Observed(status=status), problem=Blocker(reasons.SPEC_INVALID, str(error)))
        runs = {}
        for name in {*self._runs, *self._refused}:
            pod = self._runs[name].observe() if name in self._runs else None
            runs[name] = RunObservation((pod,) if pod else (), self._refused.get(name, ""))
        # A stopped run is observed once more: its report arrives after its end was decided.
        self._runs = {name: run for name, run in self._runs.items() if not run.is_deleted}
        blocker = blocker_of(job, has_attempts=bool(status.get("attempts")))
        observed = Observed(
            status=status,
            runs=runs,
            blockers=(blocker,) if blocker else (),
            trace=self._trace,
        )
        kept = _read_json(self._measurements)
        known = measurements.cached_overhead(kept, measurements.overhead_subject(*_asked(job, observed)))
        earlier = measurements.cached_probes(kept, measurements.probes_subject(*_asked(job, observed)))
        return Snapshot(manifest, replace(observed, measured_overhead=known, earlier=earlier), job)

    async def write(self, snapshot: Snapshot, status: dict[str, Any]) -> None:
        """Write the status, if the file has not changed since it was read."""
        # Compared as text, because NaN is not equal to itself.
        if json.dumps(self._read()) != json.dumps(snapshot.manifest):
            raise ApiError(ErrorKind.CONFLICT, f"{_file(self._directory)} was written by somebody else")
        self._save({**snapshot.manifest, "status": status})

    async def create(self, snapshot: Snapshot, runs: Sequence[Run | TraceRun], now: float) -> bool:
        """Start a process for each run that has none."""
        assert snapshot.job is not None  # only a parsed job has runs
        before, self._refused = self._refused, {}
        for run in runs:
            pod = _pod(snapshot.job, run)
            name = run_of(pod)
            if name in self._runs:
                continue
            started = LocalRun(self._directory / "runs" / name, self._wake)
            try:
                await started.start(*command_of(snapshot.job, pod, self._directory))
            except (OSError, ValueError) as error:
                self._refused[name] = f"the command could not be started: {error}"
                continue
            self._runs[name] = started
            self._wake()  # there is no watch to report it
        return bool(set(self._refused.items()) - set(before.items()))

    async def remember_trace(self, snapshot: Snapshot, trace: str, now: float) -> bool:
        """Cache it in memory, for this call."""
        self._trace = trace
        return True

    async def remember_overhead(self, snapshot: Snapshot, measured: JobOverhead) -> bool:
        """Cache it in a file shared by all jobs."""
        assert snapshot.job is not None  # only a parsed job has runs
        subject = measurements.overhead_subject(*_asked(snapshot.job, snapshot.observed))
        return self._keep(lambda kept: measurements.with_overhead(kept, "", subject, measured))

    async def remember_probes(self, snapshot: Snapshot, probes: Sequence[ProbeStatus], now: float) -> bool:
        """Cache it in the same file."""
        assert snapshot.job is not None  # only a job that could be read has runs
        subject = measurements.probes_subject(*_asked(snapshot.job, snapshot.observed))
        return self._keep(lambda kept: measurements.with_probes(kept, "", subject, probes, int(now)))

    def _keep(self, change: Callable[[Manifest], Manifest]) -> bool:
        """Apply ``change`` to the shared file, under a lock against the programs of other jobs."""
        try:
            with self._measurements.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                write_whole(self._measurements, json.dumps(change(_read_json(self._measurements)), indent=1))
        except OSError as error:
            # Only later jobs would use it, so this one continues.
            _log.warning("%s cannot be written: %s", self._measurements, error)
            return False
        return True

    async def delete(self, snapshot: Snapshot, deletions: Sequence[Deletion]) -> None:
        """End the processes of these runs; their directories stay for the logs."""
        for each in deletions:
            run = self._runs.get(each.name)
            if run is not None and run.uid == each.uid:
                await run.delete(each.grace_seconds)

    async def tell(self, snapshot: Snapshot, events: Sequence[JobEvent]) -> None:
        """Pass the events to the listener."""
        for each in events:
            self._tell(each)

    async def delete_job(self, snapshot: Snapshot) -> None:
        """End the job but keep its directory, which is the user's to remove."""

    def _read(self) -> Manifest:
        return job_in(self._directory)

    def _save(self, manifest: Manifest) -> None:
        file = _file(self._directory)
        try:
            write_whole(file, json.dumps(manifest, indent=1))
        except OSError as error:
            raise ApiError(ErrorKind.RETRY, f"{file} cannot be written: {error.strerror}") from error


def blocker_of(job: Job, has_attempts: bool = False) -> Blocker | None:
    """Why no run of the job can be started on this machine, else None."""
    checked = preflight.check(job, _POLICY, _NO_IMAGE, has_attempts=has_attempts)
    return checked.blocker or _not_here(job, checked.pod)


def started_here(job: Job, run: Run, directory: Path) -> LocalCommand:
    """The command of a run. Nothing may block the job."""
    return command_of(job, _pod(job, run), directory)


class StateError(Exception):
    """A state directory with content that this program did not write. The message says what to do."""


def job_in(directory: Path) -> Manifest:
    """The job in a state directory; empty if there is none."""
    file = _file(directory)
    if not file.exists():
        return {}
    found = _read_json(file)
    metadata = found.get("metadata")
    if not (isinstance(found.get("spec"), dict) and isinstance(metadata, dict) and _is_accepted(metadata)):
        raise StateError(f"{file} is not as memtune run left it; restore it, or remove {directory} to start over")
    return found


def _is_accepted(metadata: Manifest) -> bool:
    return all(isinstance(metadata.get(name), kind) for name, kind in _OF_A_JOB.items())


def _file(directory: Path) -> Path:
    return directory / "job.json"


def _asked(job: Job, observed: Observed) -> tuple[Job, str, str]:
    """The arguments of a cache subject: the job, the image and the GPU product, or this machine's own."""
    return job, _NO_IMAGE, measurements.product_of(job, observed) or _OWN_GPU


def _pod(job: Job, run: Run | TraceRun) -> Manifest:
    """The pod that the run would have in a cluster."""
    return run_pods(job, run, _NO_IMAGE)[0]


def _read_json(path: Path) -> Manifest:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _not_here(job: Job, pod: Manifest | None) -> Blocker | None:
    """What blocks a job that needs a cluster, else None."""
    resources = job.spec.resources
    if resources.pods > 1:
        return Blocker(reasons.TEMPLATE_REJECTED, "spec.resources.nodes: this is one machine; set 1, or use a cluster")
    if job.spec.tuning.parallel_probes > 1:
        sentence = "spec.tuning.parallelProbes: one machine's GPUs hold one probe at a time; set 1, or use a cluster"
        return Blocker(reasons.TEMPLATE_REJECTED, sentence)
    for container in (pod or {}).get("spec", {}).get("containers", []):
        for variable in container.get("env") or []:
            if "valueFrom" in variable:
                sentence = f"env {variable['name']}: only a cluster has what valueFrom names; give a value"
                return Blocker(reasons.TEMPLATE_REJECTED, sentence)
    return None
