"""The environment variables that the operator sets and the runner reads, each named once.

They come first in the container's environment, so that the user's own variables, command and arguments may refer to
them as ``$(MEMTUNE_MICRO_BATCH)``. A variable without a value is set and empty: Kubernetes would pass a reference to an
unset variable to the command unexpanded.
"""

from __future__ import annotations

PREFIX = "MEMTUNE_"

# The run's identity and settings.
JOB = "MEMTUNE_JOB"
JOB_UID = "MEMTUNE_JOB_UID"
RUN = "MEMTUNE_RUN"
RUN_KIND = "MEMTUNE_RUN_KIND"
ATTEMPT = "MEMTUNE_ATTEMPT"
RESTARTED_AT = "MEMTUNE_RESTARTED_AT"
PROBE_STEPS = "MEMTUNE_PROBE_STEPS"
PROBE_SECONDS = "MEMTUNE_PROBE_SECONDS"
PROBE_TARGET_TOKENS = "MEMTUNE_PROBE_TARGET_TOKENS"
PROBE_TARGET_BYTES = "MEMTUNE_PROBE_TARGET_BYTES"
INTEGRATION = "MEMTUNE_INTEGRATION"

# The plan as JSON, and the numbers that scripts need most.
PLAN = "MEMTUNE_PLAN"
MICRO_BATCH = "MEMTUNE_MICRO_BATCH"
ACCUMULATION = "MEMTUNE_ACCUMULATION"
GLOBAL_ACCUMULATION = "MEMTUNE_GLOBAL_ACCUMULATION"
DEEPSPEED_CONFIG = "MEMTUNE_DEEPSPEED_CONFIG"

# Lessons of an attempt that died in an evaluation or a save, for the next one.
EVALUATION_BATCH = "MEMTUNE_EVALUATION_BATCH"
SHARDED_SAVE = "MEMTUNE_SHARDED_SAVE"

# Facts that no plan changes.
GLOBAL_BATCH = "MEMTUNE_GLOBAL_BATCH"
SEQUENCE_LENGTH = "MEMTUNE_SEQUENCE_LENGTH"
ARCHITECTURE = "MEMTUNE_ARCHITECTURE"

# Where it runs, and how its pods find each other.
NODES = "MEMTUNE_NODES"
NODE_RANK = "MEMTUNE_NODE_RANK"
GPUS_PER_NODE = "MEMTUNE_GPUS_PER_NODE"
RENDEZVOUS = "MEMTUNE_RENDEZVOUS"
DEVICE = "MEMTUNE_DEVICE"
GPU_NAME = "MEMTUNE_GPU_NAME"
GPU_MEMORY_BYTES = "MEMTUNE_GPU_MEMORY_BYTES"
MEMORY_SHARE = "MEMTUNE_MEMORY_SHARE"
NVME_PATH = "MEMTUNE_NVME_PATH"
SHRINK = "MEMTUNE_SHRINK"
METRICS_PORT = "MEMTUNE_METRICS_PORT"
RENDEZVOUS_SECONDS = "MEMTUNE_RENDEZVOUS_SECONDS"
GRACE_SECONDS = "MEMTUNE_GRACE_SECONDS"

# Where it writes, and where it resumes from.
CHECKPOINT_PATH = "MEMTUNE_CHECKPOINT_PATH"
RESUME_FROM = "MEMTUNE_RESUME_FROM"
RESUME_STEP = "MEMTUNE_RESUME_STEP"
RESUME_SAMPLES = "MEMTUNE_RESUME_SAMPLES"
REPORT_PATH = "MEMTUNE_REPORT_PATH"
REPORT_LOG_TAIL = "MEMTUNE_REPORT_LOG_TAIL"
TERMINATION_MESSAGE_PATH = "MEMTUNE_TERMINATION_MESSAGE_PATH"

# Only for a trace run: mount paths of volumes whose files may differ for the next job, separated by colons.
TRACE_VOLUMES = "MEMTUNE_TRACE_VOLUMES"

# Between the parts of the runner on one node: the directories of each rank's report and of shared state, whether a
# parent process already has the hooks, whether a launcher such as torchrun is in the command, and the options of an
# `accelerate launch`.
RANK_DIRECTORY = "MEMTUNE_RANK_DIRECTORY"
NODE_DIRECTORY = "MEMTUNE_NODE_DIRECTORY"
HOOKED = "MEMTUNE_HOOKED"
LAUNCHED = "MEMTUNE_LAUNCHED"
ACCELERATE_OPTIONS = "MEMTUNE_ACCELERATE_OPTIONS"
# Where the emulated GPU is built and kept, if not in the user's cache directory.
EMULATED_CACHE = "MEMTUNE_EMULATED_CACHE"
# From `memtune emulate` to the library that it preloads: the properties of the emulated GPU.
EMULATED_GPU = "MEMTUNE_EMULATED_GPU"
# The same: the table of what each process of the run takes of it.
EMULATED_PROCESSES = "MEMTUNE_EMULATED_PROCESSES"
# From `memtune emulate JOB.yaml` to the rank that it runs: where to write the emulation's result, and a snapshot.
EMULATED_RESULT = "MEMTUNE_EMULATED_RESULT"
EMULATED_SNAPSHOT = "MEMTUNE_EMULATED_SNAPSHOT"
# From `memtune emulate JOB.yaml` to a rank from which those of several plans are forked: the socket for requests.
EMULATED_FORKS = "MEMTUNE_EMULATED_FORKS"

# The runner sets these from the plan and the run, before torch is imported. A user's value would contradict it.
OWNED_BY_RUNNER = frozenset(
    {
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "WORLD_SIZE",
    }
)


# Known once the launcher has searched for checkpoints: it expands references to them, which no pod can.
FOUND_BY_LAUNCHER = (RESUME_FROM, RESUME_STEP, RESUME_SAMPLES)
_INTERNAL = frozenset(
    {
        *(TRACE_VOLUMES, RANK_DIRECTORY, NODE_DIRECTORY, HOOKED, LAUNCHED, ACCELERATE_OPTIONS),
        *(EMULATED_CACHE, EMULATED_GPU, EMULATED_PROCESSES, EMULATED_RESULT, EMULATED_SNAPSHOT, EMULATED_FORKS),
    }
)
# The variables that a command may refer to as $(NAME). Each is set in every run, or empty.
REFERABLE = frozenset(
    value
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, str) and value != PREFIX and value not in _INTERNAL
)


def is_reserved(name: str) -> bool:
    """Whether only MemTune may set a variable, so that a user's value is rejected."""
    return name.startswith(PREFIX) or name in OWNED_BY_RUNNER
