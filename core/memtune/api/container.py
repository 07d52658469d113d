"""Reads the containers of a job's template: which one trains, its memory, and the ``$(NAME)`` in its texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from memtune.api.job import Job
from memtune.units import parse_bytes

TRAINER_CONTAINER = "trainer"
# The module of MemTune's own trainer, as an argument of `python -m`.
_BUILT_IN = "memtune_runner.trainer"
_LAUNCHERS = ("torchrun", "torch.distributed", "accelerate", "deepspeed", "tune run")


class TrainerMemory(NamedTuple):
    """``requests.memory`` and ``limits.memory`` of the training container, 0 if the template does not say."""

    request_bytes: int = 0
    limit_bytes: int = 0

    @property
    def asked_bytes(self) -> int:
        """The template's memory request; with only a limit, the limit is the request too."""
        return self.request_bytes or self.limit_bytes


def trainer_memory(job: Job) -> TrainerMemory:
    """Zeros for a template without such a container or of another shape."""
    try:
        resources = _trainer(job).get("resources") or {}
        return TrainerMemory(memory_bytes(resources, "requests"), memory_bytes(resources, "limits"))
    except (AttributeError, LookupError, TypeError):
        return TrainerMemory()


def is_plain_python(job: Job) -> bool:
    """Whether the command is Python without a launcher, so that a single-rank script gets no rank variables.

    A shell, another program or the image's own entry point may start a launcher unseen.
    """
    words = _command_line(job)
    program = words[0].rpartition("/")[2] if words else ""
    return program.startswith("python") and not any(launcher in " ".join(words) for launcher in _LAUNCHERS)


def is_built_in(job: Job) -> bool:
    """Whether the job trains with MemTune's own trainer: it has no template, or one that names it."""
    words = _command_line(job)
    return job.spec.template is None or ("-m", _BUILT_IN) in pairwise(words)


def _command_line(job: Job) -> list[str]:
    """Command and arguments of the training container; empty if the template has none of this shape."""
    try:
        container = _trainer(job)
        return [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    except (AttributeError, LookupError, TypeError):
        return []


def _trainer(job: Job) -> Mapping[str, Any]:
    containers = (job.spec.template or {})["spec"]["containers"]
    index = trainer_index(containers, job.spec.resources.gpu_resource)
    found: Mapping[str, Any] = {} if index is None else containers[index]
    return found


def trainer_index(containers: Sequence[Mapping[str, Any]], gpu_resource: str) -> int | None:
    """The container ``trainer``, else the only one that requests GPUs, else the only one; None if ambiguous."""
    named = [i for i, c in enumerate(containers) if c.get("name") == TRAINER_CONTAINER]
    asking = [i for i, c in enumerate(containers) if asked_gpus(c, gpu_resource)]
    return next((found[0] for found in (named, asking, range(len(containers))) if len(found) == 1), None)


def asked_gpus(container: Mapping[str, Any], gpu_resource: str) -> str | None:
    """The number of GPUs that a container requests, as written."""
    resources = container.get("resources") or {}
    for kind in ("limits", "requests"):
        if (asked := (resources.get(kind) or {}).get(gpu_resource)) is not None:
            return str(asked)
    return None


def memory_bytes(resources: Mapping[str, Any], kind: str) -> int:
    """0 if absent, or if invalid, which is left to the API server to reject."""
    try:
        return parse_bytes((resources.get(kind) or {}).get("memory", 0))
    except ValueError:
        return 0


# Two dollar signs stand for one, and begin no reference.
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """The name of each reference, and the text that follows it."""
    for found in _REFERENCE.finditer(text):
        if found[1] is not None:
            yield found[1], text[found.end() :]


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """Expand ``$(NAME)`` as the kubelet does: an unknown name stays as it is, ``$$`` becomes one dollar sign."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def escape(text: str) -> str:
    """Escape the text so that ``substitute`` returns it unchanged."""
    return text.replace("$", "$$")
