"""Every reason of a condition, an event or a blocker, each one CamelCase word and defined once."""

from __future__ import annotations

# Predicted.
PREDICTED = "Predicted"
GPU_UNKNOWN = "GpuUnknown"
NOT_TRACED = "NotTraced"

# Tuned.
PROBING = "Probing"
MEASURED = "Measured"
CHOSEN_BY_PREDICTION = "ChosenByPrediction"
GIVEN = "GivenBySpec"
EMULATED = "Emulated"

# Launched.
LAUNCHED = "Launched"
RELAUNCHED = "Relaunched"

# Complete.
SUCCEEDED = "Succeeded"
PREDICTED_ONLY = "PredictedOnly"
MAY_FIT = "MayFit"

# Failed.
NOTHING_FITS = "NothingFits"
NOTHING_MEASURED = "NothingMeasured"
LADDER_EXHAUSTED = "LadderExhausted"
NOT_RESUMABLE = "NotResumable"
OOM_RETRIES_SPENT = "OomRetriesSpent"
DISRUPTIONS_SPENT = "DisruptionsSpent"
HOST_MEMORY = "HostMemory"
USER_ERROR = "UserError"
IMAGE_ERROR = "ImageError"
PLAN_NOT_APPLIED = "PlanNotApplied"
HUNG = "Hung"
DEADLINE_EXCEEDED = "DeadlineExceeded"

# Suspended.
SUSPENDED = "SuspendedBySpec"
RESUMED = "Resumed"

# Queued.
QUEUED = "Waiting"

# Stalled. The backend uses the first ones in refusals.
POLICY_DENIED = "PolicyDenied"
TEMPLATE_REJECTED = "TemplateRejected"
TEMPLATE_CONFLICT = "TemplateConflict"
COMMAND_REQUIRED = "CommandRequired"
TRAINER_UNKNOWN = "TrainerUnknown"
SAMPLER_MISSING = "SamplerMissing"
NAME_TAKEN = "NameTaken"
GANG_NOT_INSTALLED = "GangNotInstalled"
SPEC_INVALID = "SpecInvalid"
SPEC_CHANGED = "SpecChanged"
MODEL_UNKNOWN = "ModelUnknown"
MIXED_GPUS = "MixedGpus"
COST_UNKNOWN = "CostUnknown"
REFUSED = "Refused"
UNSCHEDULABLE = "Unschedulable"
IMAGE_PULL = "ImagePull"

SHARED_GPUS = "SharedGpus"
OVER = "Over"
CLEARED = "Cleared"

# Only for events.
STATUS_REFUSED = "StatusRefused"
TRACE_RECORDED = "TraceStarted"
TRACE_ENDED = "TraceEnded"
PRODUCT_CHOSEN = "ProductChosen"
PROBES_KNOWN = "ProbesKnown"
PROBES_OUTDATED = "ProbesOutdated"
PROBES_STALE = "ProbesStale"
EMULATION_RECORDED = "EmulatedProbeStarted"
EMULATION_ENDED = "EmulatedProbeEnded"
PROBE_RECORDED = "ProbeStarted"
PROBE_ENDED = "ProbeEnded"
RUN_ENDED = "AttemptEnded"
BUDGET = "ProbeBudget"
REPORT_IGNORED = "ReportIgnored"
SCRIPT_WARNING = "ScriptWarning"
