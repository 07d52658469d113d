"""Checks a template's ``$(MEMTUNE_...)`` references to MemTune's variables. Pure, and quick to import: commands use it.

Kubernetes leaves a reference to an unknown variable as it is, so the script would take ``$(MEMTUNE_...)`` for the name
of a directory; in a mount's ``subPathExpr`` it prevents the container from starting. References that no run can fill in
are therefore refused.
"""

from __future__ import annotations

import difflib

from memtune.api import Job
from memtune.api.container import names_in
from memtune.wire import environment
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.template import read_template
from memtune_operator.pods.wrapped_container import conflict, wrapped_index

# The kubelet expands it before the container starts, before the launcher has found a checkpoint.
_SUB_PATH = "subPathExpr"
# From this similarity on, a name is another one misspelt.
_MISSPELT = 0.85


def check_template(job: Job) -> None:
    """Raise TemplateError if the job's template cannot be read, or refers to variables that no run has."""
    spec = read_template(job, "")["spec"]
    trainer = spec["containers"][wrapped_index(spec["containers"], job.spec.resources.gpu_resource)]
    check_references(spec, trainer, job)


def check_references(spec: Manifest, wrapped: Manifest, job: Job) -> None:
    """Raise TemplateError at the first reference to a MemTune variable that its container does not have."""
    for part in ("initContainers", "containers"):
        for container in spec.get(part) or []:
            where = f"spec.{part}[{container['name']}]"
            for field, text in _texts(container):
                for name, rest in names_in(text):
                    if name.startswith(environment.PREFIX):
                        _check(f"{where}.{field}", name, rest, job if container is wrapped else None, container)


def _texts(container: Manifest) -> list[tuple[str, str]]:
    words = [(field, word) for field in ("command", "args") for word in container.get(field) or []]
    values = [(f"env[{each['name']}]", each.get("value") or "") for each in container.get("env") or []]
    mounts = [
        (f"volumeMounts[{each['mountPath']}].{_SUB_PATH}", each.get(_SUB_PATH) or "")
        for each in container.get("volumeMounts") or []
    ]
    return [*words, *values, *mounts]


def _check(where: str, name: str, rest: str, job: Job | None, container: Manifest) -> None:
    """Check one reference; ``job`` is None for a container that does not train."""
    if job is None:
        if name not in {each["name"] for each in container.get("env") or []} and not container.get("envFrom"):
            problem = f"$({name}) is set in the container that trains alone"
            raise conflict(where, problem, "write the value itself, or do this in the container that trains")
        return
    if name not in environment.REFERABLE:
        meant = _meant(name)
        advice = f"did you mean $({meant})?" if meant else "docs/integrations.md lists all of them"
        raise conflict(where, f"$({name}) is not a variable of MemTune", advice)
    if where.endswith(f".{_SUB_PATH}") and name in environment.FOUND_BY_LAUNCHER:
        problem = f"$({name}) is known only after the volumes are mounted"
        raise conflict(where, problem, "mount the directory above, and refer to it in command, args or env")
    field = _fields_of_paths(job).get(name)
    if field:
        would_be = rest if rest.startswith("/") else "empty"
        problem = f"$({name}){rest} would be {would_be}, since the job has no {field}"
        raise conflict(where, problem, f"give {field}, or write another path")


def _meant(name: str) -> str:
    """The variable that an unknown name resembles, or empty."""
    known = {each.removeprefix(environment.PREFIX): each for each in sorted(environment.REFERABLE)}
    bare = name.removeprefix(environment.PREFIX)
    near = difflib.get_close_matches(bare, known, n=1)
    # The numbers of a checkpoint look as similar as its directory, which is what a command resumes from.
    if bare.startswith("RESUME") and not difflib.get_close_matches(bare, known, n=1, cutoff=_MISSPELT):
        return environment.RESUME_FROM
    return known[near[0]] if near else ""


def _fields_of_paths(job: Job) -> dict[str, str]:
    """The directory variables that are empty in every run of this job, with the fields that would set them."""
    given = {
        environment.CHECKPOINT_PATH: ("spec.checkpoint", job.spec.checkpoint),
        environment.NVME_PATH: ("spec.resources.nvmePath", job.spec.resources.nvme_path),
    }
    return {name: field for name, (field, value) in given.items() if not value}
