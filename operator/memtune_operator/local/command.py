"""The command of a local run: what a pod's wrapped container would start."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from memtune.api import Job
from memtune.api.container import substitute
from memtune.wire import environment
from memtune.wire.names import probe_saves
from memtune.wire.run import RunKind
from memtune_operator.local.checkpoints import checkpoint_path, emulated_checkpoints, moved
from memtune_operator.local.runs import expanded
from memtune_operator.pods.bootstrap import BOOTSTRAP
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.wrapped_container import wrapped_index


class LocalCommand(NamedTuple):
    """The command, the variables to add to this program's environment, and the working directory."""

    words: list[str]
    variables: dict[str, str]
    workdir: Path

    def expanded(self, others: Mapping[str, str] | None = None) -> tuple[list[str], dict[str, str]]:
        """The command and environment with references expanded as by the kubelet."""
        whole = {**os.environ, **expanded(self.variables), **(others or {})}
        return [substitute(word, whole) for word in self.words], whole


def command_of(job: Job, pod: Manifest, directory: Path) -> LocalCommand:
    """The wrapped container's command, with the runner that this program installed in ``directory``."""
    containers = pod["spec"]["containers"]
    container = containers[wrapped_index(containers, job.spec.resources.gpu_resource)]
    variables = {each["name"]: each.get("value") or "" for each in container["env"]}
    variables |= _python_path(directory, variables.get("PYTHONPATH") or os.environ.get("PYTHONPATH", ""))
    variables |= {environment.RENDEZVOUS: f"127.0.0.1:{_free_port()}", **_program_path()}
    # Pods have a port each; here two probes would conflict.
    variables[environment.METRICS_PORT] = ""
    # Builds are shared by all jobs of this user.
    variables[environment.EMULATED_CACHE] = ""
    begin = container["command"].index(BOOTSTRAP) + 1
    words = [*container["command"][begin:], *(container.get("args") or [])]
    if job.spec.checkpoint:
        is_emulated = variables.get(environment.DEVICE) == "emulated"
        here = emulated_checkpoints(directory) if is_emulated else checkpoint_path(job, directory)
        words = [moved(word, job.spec.checkpoint.path, here) for word in words]
        variables = {name: moved(value, job.spec.checkpoint.path, here) for name, value in variables.items()}
        is_probe = variables.get(environment.RUN_KIND) == RunKind.PROBE
        variables[environment.CHECKPOINT_PATH] = probe_saves(here, variables[environment.RUN]) if is_probe else here
    launch = [job.spec.runner.python, "-m", "memtune_runner", *words]
    return LocalCommand(launch, variables, Path(container.get("workingDir") or Path.cwd()))


def with_python(manifest: Manifest) -> Manifest:
    """The job with this program's Python interpreter, unless it names one."""
    spec = manifest.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("runner", {}), dict):
        return manifest  # the job's validation reports it
    return {**manifest, "spec": {**spec, "runner": {"python": sys.executable, **spec.get("runner", {})}}}


def _python_path(directory: Path, own: str) -> dict[str, str]:
    found = [str(directory / "runner"), own]
    return {"PYTHONPATH": os.pathsep.join(filter(None, found))}


def _program_path() -> dict[str, str]:
    """PATH with this program's environment first, unless another one was activated (conda's `base`, which is activated
    by default, does not count)."""
    if os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_DEFAULT_ENV", "base") != "base":
        return {}
    return {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])}


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
