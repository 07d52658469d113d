"""`memtune study NAME --storage URL`: exports the probes of a job as an Optuna study, for Optuna's tools."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial

from memtune.api.status import ProbeStatus, to_seconds
from memtune.controller.job_knowledge import knowledge_of
from memtune.controller.records import has_ended
from memtune.controller.trials import search_state
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.next_probe import SearchState
from memtune.planning.space import BOTH, MEMORY, THROUGHPUT
from memtune.units import counted
from memtune.wire.names import pod_name
from memtune.wire.run import RunKind
from memtune_cli.errors import InputError
from memtune_cli.input.job_view import JobView
from memtune_cli.input.named_job import named_job_view
from memtune_operator.search.study import all_parameters, directions_of, distributions_of, frozen

_JOB = "job_uid"  # the study attribute with the job's uid
_RUN = "run"  # the trial attribute with the probe's name
_USE = "give a database like sqlite:///study.db, or a journal file like study.log"
_SPEED, _FREE = "tokens per second", "free bytes"
_METRICS = {THROUGHPUT: [_SPEED], MEMORY: [_FREE], BOTH: [_SPEED, _FREE]}
# In-memory SQLite databases.
_IN_MEMORY = re.compile(r"sqlite(\+\w+)?://(/?|/:memory:|/file:.*(:memory:|mode=memory).*)(\?.*)?")
# The first line of a journal creates a study and is short.
_LONGEST_LINE = 10_000


def run(arguments: argparse.Namespace) -> int:
    """Add the finished probes that the study lacks."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    view, shown = named_job_view(arguments), _shown(arguments.storage)
    name, state = arguments.study or view.title, _search_state(view)
    trials, about = _trials(view, state), _about(view, state.knowledge)
    with _naming_storage(shown):
        study = _study(_uid(view), name, _storage(arguments.storage), state.knowledge)
        earlier = study.trials
        _check_choices(earlier, state, shown)
        known = {trial.user_attrs.get(_RUN) for trial in earlier}
        new = [trial for trial in trials if trial.user_attrs[_RUN] not in known]
        study.add_trials(new)
        study.set_metric_names(_METRICS[state.knowledge.objective])
        for attribute, value in about.items():
            study.set_user_attr(attribute, value)
    print(f"{shown}: study {name} has {counted(len(earlier) + len(new), 'trial')}, {len(new)} of them new")
    return 0


def _search_state(view: JobView) -> SearchState:
    if view.job is None:
        raise InputError(f"the spec of {view.title} cannot be read; memtune status says why")
    # Attempts do not tell which probes fit: their GPUs may have lost memory since.
    status = view.status.model_copy(update={"attempts": ()})
    try:
        knowledge = knowledge_of(view.job, status, None, is_traced_elsewhere=True)
    except ValueError as error:
        raise InputError(f"the plans of {view.title} cannot be listed: {error}") from None
    return search_state(view.job, status, knowledge)


def _uid(view: JobView) -> str:
    return view.job.metadata.uid if view.job else ""


def _shown(storage: str) -> str:
    """The storage without a password."""
    scheme, _, rest = storage.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if rest else storage


def _storage(storage: str) -> BaseStorage:
    """Open a database by URL, or a journal file by path."""
    if _IN_MEMORY.fullmatch(storage):
        raise InputError(f"--storage: {storage} keeps nothing: it is gone with this command; {_USE}")
    if "://" in storage:
        return RDBStorage(storage)
    _check_journal(Path(storage))
    return JournalStorage(JournalFileBackend(storage))


def _check_journal(path: Path) -> None:
    """Refuse other files: Optuna would append to any file, and hang on a device."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"--storage: {path} is no regular file; {_USE}")
    if not path.is_file():
        return
    with path.open("rb") as file:
        line = file.readline(_LONGEST_LINE)
    if line and not (line.startswith(b"{") and b'"op_code"' in line):
        raise InputError(f"--storage: {path} is no journal of Optuna's; {_USE}")


@contextmanager
def _naming_storage(shown: str) -> Iterator[None]:
    """Turn a storage error into one sentence that names the storage."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    except InputError:
        raise
    except ImportError as error:
        # Optuna says only that one is missing; the cause names it.
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        needs = f"cannot be loaded: {str(cause).strip().splitlines()[0]}"
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            needs = f"is not installed: {cause.name}"
        raise InputError(f"--storage: {shown} needs a package that {needs}; {_USE}") from None
    except Exception as error:
        # SQLAlchemy, its drivers, Optuna and the JSON parser each raise their own exceptions.
        why = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"--storage: {shown} cannot be used: {why[0]}; {_USE}") from None


def _study(uid: str, name: str, storage: BaseStorage, knowledge: PlanKnowledge) -> optuna.Study:
    """Load the job's study, or create it."""
    if name not in optuna.get_all_study_names(storage):
        study = optuna.create_study(study_name=name, storage=storage, directions=directions_of(knowledge))
        study.set_user_attr(_JOB, uid)
        return study
    study = optuna.load_study(study_name=name, storage=storage)
    if study.user_attrs.get(_JOB) != uid:
        raise InputError(f"--storage: its study {name} is not of this job; give another storage, or another --study")
    if study.directions != directions_of(knowledge):
        raise InputError(f"--storage: its study {name} was written for other tuning.objectives; give another --study")
    return study


def _check_choices(earlier: list[FrozenTrial], state: SearchState, shown: str) -> None:
    """Refuse a study with other choices: Optuna rejects trials whose distributions differ from earlier ones."""
    known = distributions_of(all_parameters(state))
    for trial in earlier:
        for name, distribution in trial.distributions.items():
            if name in known and known[name] != distribution:
                raise InputError(
                    f"--storage: in {shown} the parameter {name} has other choices than tuning.space now allows; "
                    "give another --study"
                )


def _trials(view: JobView, state: SearchState) -> list[FrozenTrial]:
    """The finished probes: a trial added while running could not be changed later."""
    parameters, trials = all_parameters(state), []
    for probe, trial in zip(view.status.probes, state.trials, strict=True):
        if has_ended(probe):
            found = frozen(state.knowledge, parameters, trial, _attributes(view, probe))
            found.datetime_start = _local(probe.started_at or probe.ended_at)
            found.datetime_complete = _local(probe.ended_at)
            trials.append(found)
    return trials


def _attributes(view: JobView, probe: ProbeStatus) -> dict[str, Any]:
    """User attributes of a trial: the values for which Optuna has no field."""
    is_on_cluster = view.job is not None and not view.state and not probe.measured_by
    pods = view.job.spec.resources.pods if view.job and is_on_cluster else 0
    found: dict[str, Any] = {
        _RUN: probe.name,
        "pods": [pod_name(view.name, RunKind.PROBE, probe.number, index) for index in range(pods)],
        "measured_by": probe.measured_by,
        "torch": probe.torch,
        "driver": probe.driver,
        "verdict": str(probe.verdict or ""),
        "message": probe.message,
        "predicted_bytes": probe.predicted_bytes,
        "tokens_per_second": probe.tokens_per_second,
        "gpu_seconds": probe.gpu_seconds,
        "pruned": probe.pruned,
        "steps": [
            {"step": each.step, "seconds": each.seconds, "device_bytes": each.device_bytes}
            for each in view.status.measured_steps
            if each.probe == probe.number
        ],
        # The memory is then that of torch's own allocator, and the speed is predicted.
        "emulated": probe.emulated,
    }
    return {name: value for name, value in found.items() if value}


def _local(text: str | None) -> datetime | None:
    """A time as Optuna stores it: local and without a time zone."""
    seconds = to_seconds(text) if text else None
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().replace(tzinfo=None) if seconds else None


def _about(view: JobView, knowledge: PlanKnowledge) -> dict[str, Any]:
    """User attributes of the study: the values shared by all trials."""
    plan, device = view.status.plan, view.job.spec.resources.device if view.job else ""
    return {
        "job": view.title,
        "device": device,
        "gpu": "virtual" if knowledge.workload.virtual else view.status.gpu_product or knowledge.workload.gpu.name,
        "gpus": knowledge.workload.world,
        "usable_bytes": knowledge.usable_bytes,
        "headroom": knowledge.headroom,
        "plan": plan.name if plan else "",
    }
