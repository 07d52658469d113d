"""Labels, annotations and names of the objects that a job owns, beside those of runs and pods in `memtune.wire.names`.

Names depend on the job's name and the run alone, so that a restarted operator finds the objects again.
"""

from __future__ import annotations

from memtune.wire.names import HASH_CHARACTERS, job_stem, run_name, short_hash
from memtune.wire.run import RunKind

GROUP = "memtune.dev"

LABEL_JOB = f"{GROUP}/job"
LABEL_RUN = f"{GROUP}/run"
LABEL_RUN_KIND = f"{GROUP}/run-kind"
LABEL_INDEX = f"{GROUP}/index"
ANNOTATION_PLAN = f"{GROUP}/plan"
ANNOTATION_PLAN_HASH = f"{GROUP}/plan-hash"
# On pods that a JobSet creates: the job's full name, which may be too long for a label.
ANNOTATION_JOB = f"{GROUP}/job"

# Labels and annotations of queues and gang schedulers.
LABEL_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
LABEL_KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
ANNOTATION_KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
ANNOTATION_KUEUE_RETRIABLE = "kueue.x-k8s.io/retriable-in-group"
LABEL_COSCHEDULING_GROUP = "scheduling.x-k8s.io/pod-group"
ANNOTATION_VOLCANO_GROUP = "scheduling.k8s.io/group-name"
ANNOTATION_VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
ANNOTATION_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
LABEL_GPU_PRODUCT = "nvidia.com/gpu.product"
LABEL_GPU_MEMORY = "nvidia.com/gpu.memory"
LABEL_HOSTNAME = "kubernetes.io/hostname"

COPY_CONTAINER = "memtune-runner"
# The name prefix of MemTune's containers and volumes.
RESERVED_PREFIX = "memtune-"
RUNNER_VOLUME = "memtune-runner"
SHM_VOLUME = "memtune-shm"
CHECKPOINT_VOLUME = "memtune-checkpoints"
# A port name has at most 15 characters.
METRICS_PORT_NAME = "memtune-metrics"
RENDEZVOUS_PORT_NAME = "rendezvous"
# The name of the replicated Job, which is part of the pod names.
REPLICATED_JOB = "node"
# Room for it, a five-digit index and the Job's random suffix of six characters.
_LONGEST_JOB_SET = 63 - len(f"-{REPLICATED_JOB}-0-99999-xxxxx")


def job_set_name(job_name: str, kind: RunKind, number: int) -> str:
    """The run's name, shortened to a prefix and a hash if needed: a JobSet's pods have longer names."""
    name = run_name(job_name, kind, number)
    if len(name) <= _LONGEST_JOB_SET:
        return name
    return f"{name[: _LONGEST_JOB_SET - HASH_CHARACTERS - 1].rstrip('-')}-{short_hash(name, HASH_CHARACTERS)}"


def run_labels(job_name: str, kind: RunKind, number: int) -> dict[str, str]:
    """The labels that select the pods of one run."""
    return {
        LABEL_JOB: job_stem(job_name),
        LABEL_RUN: run_name(job_name, kind, number),
        LABEL_RUN_KIND: str(kind),
    }
