"""Names of runs and pods, derived from the job's name alone, so that anyone with API access can find them."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256

from memtune.plans.plan import Plan
from memtune.wire.run import RunKind

# Room for "-probe-" or "-train-", a run number and a pod index of five digits each, within the 63 of a DNS label.
LONGEST_STEM = 63 - len("-probe-99999-99999")
HASH_CHARACTERS = 8
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@lru_cache(1024)
def job_stem(job_name: str) -> str:
    """The prefix of all names that a job owns: its own name, or a part of it and a hash."""
    if _DNS_1035.fullmatch(job_name) and len(job_name) <= LONGEST_STEM:
        return job_name
    plain = re.sub(r"[^a-z0-9]+", "-", job_name.lower()).strip("-")
    prefix = plain if plain[:1].isalpha() else f"j-{plain}"
    return f"{prefix[: LONGEST_STEM - HASH_CHARACTERS - 1].rstrip('-')}-{short_hash(job_name, HASH_CHARACTERS)}"


def run_name(job_name: str, kind: RunKind, number: int) -> str:
    """The name of a run and of its Service: ``llama-probe-3``."""
    return f"{job_stem(job_name)}-{kind.value}-{_five_digits(number)}"


def pod_name(job_name: str, kind: RunKind, number: int, index: int) -> str:
    """The name of one pod of a run, and its host name: ``llama-probe-3-0``."""
    return f"{run_name(job_name, kind, number)}-{_five_digits(index)}"


def probe_saves(checkpoints: str, run: str) -> str:
    """The directory below ``checkpoint.path`` into which a probe saves, and which it deletes at its end.

    On the same volume, because that has the room. Hidden, so that nothing below it is taken for a checkpoint.
    """
    return f"{checkpoints.rstrip('/')}/.memtune-{run}"


def plan_hash(plan: Plan) -> str:
    """A hash on the pod, so that it is never taken for another plan's."""
    return short_hash(str(plan), 16)


def short_hash(text: str, characters: int) -> str:
    """The beginning of a text's hash."""
    return sha256(text.encode()).hexdigest()[:characters]


def _five_digits(number: int) -> int:
    if not 0 <= number <= 99999:
        raise ValueError(f"{number} cannot be part of a name; runs and pods are numbered from 0 to 99999")
    return number
