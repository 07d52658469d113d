"""Every name, label and annotation of the objects that a job owns, each defined once.

Names are a function of the job's name alone, so that an operator that knows nothing but the API finds them again.
"""

from __future__ import annotations

import re
from hashlib import sha256

from memtune.plan import Plan
from memtune.run import RunKind

GROUP = "memtune.dev"

LABEL_JOB = f"{GROUP}/job"
LABEL_RUN = f"{GROUP}/run"
LABEL_RUN_KIND = f"{GROUP}/run-kind"
LABEL_INDEX = f"{GROUP}/index"
ANNOTATION_PLAN = f"{GROUP}/plan"
ANNOTATION_PLAN_HASH = f"{GROUP}/plan-hash"

# Not ours, but spelled here alone: what queues and gang schedulers look for.
LABEL_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
LABEL_KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
ANNOTATION_KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
LABEL_COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
ANNOTATION_VOLCANO_GROUP = "scheduling.k8s.io/group-name"
LABEL_GPU_PRODUCT = "nvidia.com/gpu.product"
LABEL_HOSTNAME = "kubernetes.io/hostname"

TRAINER_CONTAINER = "trainer"
COPY_CONTAINER = "memtune-runner"
# Of containers and volumes: those that begin with it are MemTune's.
RESERVED_PREFIX = "memtune-"
RUNNER_VOLUME = "memtune-runner"
SHM_VOLUME = "memtune-shm"
CHECKPOINT_VOLUME = "memtune-checkpoints"
# A port's name may have 15 characters.
METRICS_PORT_NAME = "memtune-metrics"
RENDEZVOUS_PORT_NAME = "rendezvous"

# Room for "-probe-" or "-train-", a run number and a pod index of five digits each, within the 63 of a DNS label.
LONGEST_STEM = 63 - len("-probe-99999-99999")
HASH_CHARACTERS = 8
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def job_stem(job_name: str) -> str:
    """What the names of all that a job owns begin with: its own name, or a prefix of it and a hash."""
    if _DNS_1035.fullmatch(job_name) and len(job_name) <= LONGEST_STEM:
        return job_name
    plain = re.sub(r"[^a-z0-9]+", "-", job_name.lower()).strip("-")
    prefix = plain if plain[:1].isalpha() else f"j-{plain}"
    return f"{prefix[: LONGEST_STEM - HASH_CHARACTERS - 1].rstrip('-')}-{_hash(job_name, HASH_CHARACTERS)}"


def run_name(job_name: str, kind: RunKind, number: int) -> str:
    """The name of a run and of its Service: ``llama-probe-3``."""
    return f"{job_stem(job_name)}-{kind}-{_five_digits(number)}"


def pod_name(job_name: str, kind: RunKind, number: int, index: int) -> str:
    """The name of one pod of a run, and its host name: ``llama-probe-3-0``."""
    return f"{run_name(job_name, kind, number)}-{_five_digits(index)}"


def plan_hash(plan: Plan) -> str:
    """What a pod carries so that it is never taken for one of another plan."""
    return _hash(str(plan), 16)


def run_labels(job_name: str, kind: RunKind, number: int) -> dict[str, str]:
    """What selects the pods of one run."""
    return {
        LABEL_JOB: job_stem(job_name),
        LABEL_RUN: run_name(job_name, kind, number),
        LABEL_RUN_KIND: str(kind),
    }


def _hash(text: str, characters: int) -> str:
    return sha256(text.encode()).hexdigest()[:characters]


def _five_digits(number: int) -> int:
    if not 0 <= number <= 99999:
        raise ValueError(f"{number} cannot be part of a name; runs and pods are numbered from 0 to 99999")
    return number
