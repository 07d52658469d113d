"""A job with a history: three probes, an out-of-memory, a recovery from its checkpoint."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

NAME = "llama-7b"
GIB = 1024**3
TOTAL_BYTES = 85_040_352_460
# Ten minutes into the second attempt.
NOW_SECONDS = 1_772_373_600.0  # 2026-03-01T14:00:00Z

RELAUNCHED = "attempt 2 trains on bf16-z2-none-mb1x32, by sharding, from the newest checkpoint of 102,400 samples"
MESSAGE = "attempt 2 is training on bf16-z2-none-mb1x32"
WON = (
    "bf16-z1-none-mb1x32 won: probe 2 measured 69.4 GiB (predicted 67.9 GiB) of 79.2 GiB, 34,012 tokens/s; "
    "2 measured plans fit, and tuning.maxProbes allows no more than 3 probes"
)
PREDICTED = (
    "bf16-z2-none-mb1x32 is predicted to take 55.8 GiB (46.2 to 67.3) of 79.2 GiB, most in loss: activations 26.1, "
    "weights 12.6, optimizer states 6.3, master weights 3.1; 32,799 tokens/s"
)
OUT_OF_MEMORY = "tried to allocate 1.91 GiB on rank 5 with 79.0 GiB in use, in forward"


def job_with_history(**status: Any) -> dict[str, Any]:
    """The object, with parts of its status replaced; None removes a part."""
    parts = deepcopy({name: part for name, part in {**_STATUS, **status}.items() if part is not None})
    return {
        "apiVersion": "memtune.dev/v1alpha1",
        "kind": "MemoryTunedJob",
        "metadata": {"name": NAME, "namespace": "research", "uid": "0b5e", "generation": 1, "resourceVersion": "7"},
        "spec": {
            "model": {
                "architecture": {
                    "hiddenSize": 4096,
                    "layers": 32,
                    "heads": 32,
                    "kvHeads": 32,
                    "ffnSize": 11008,
                    "vocabSize": 32000,
                }
            },
            "training": {"globalBatchSize": 256, "sequenceLength": 4096},
            "resources": {"gpusPerNode": 8, "gpuMemory": "80Gi", "gpuProduct": "NVIDIA-A100-SXM4-80GB"},
            "tuning": {"maxProbes": 3},
            "checkpoint": {"path": "/checkpoints"},
        },
        "status": parts,
    }


def ended_well(**status: Any) -> dict[str, Any]:
    """The same job after it has succeeded."""
    first, second = _STATUS["attempts"]
    peaks = _peaks(57.9, 0.4)
    done = {**second, "verdict": "succeeded", "endedAt": "2026-03-01T16:10:00Z", "peakBytes": peaks}
    done |= {"tokensPerSecond": 33_050, "stepSeconds": 31.7, "gpuSeconds": 67_200}
    done["message"] = "the command ended with exit code 0"
    text = (
        "attempt 2 on bf16-z2-none-mb1x32 has trained to its end, 640,000 of 640,000 samples, measured 57.9 GiB of "
        "79.2 GiB, 33,050 tokens/s"
    )
    conditions = [*_STATUS["conditions"], _condition("Complete", "Succeeded", text, "16:10:05")]
    changes = {
        "phase": "Succeeded",
        "message": text,
        "trainedSamples": 640_000,
        "attempts": [first, done],
        "conditions": conditions,
    }
    return job_with_history(**{**changes, **status})


def two_objectives() -> dict[str, Any]:
    """Return the same job with both objectives, whose two measured plans form a Pareto front."""
    job = job_with_history(front=[2, 1])
    job["spec"]["tuning"] |= {"objectives": ["throughput", "memory"], "slack": "5%"}
    return job


def without_end(run: dict[str, Any]) -> dict[str, Any]:
    """A run's record while the run was going on."""
    known = ("name", "number", "plan", "created", "startedAt", "predictedBytes")
    return {name: value for name, value in run.items() if name in known}


def still_probing() -> dict[str, Any]:
    """Return the same job during its third probe."""
    probes = _STATUS["probes"]
    return job_with_history(
        phase="Probing",
        message="probe 3 measures bf16-z2-none-mb2x16, predicted to take 85.1 of 79.2 GiB and to need "
        "74.9 (66.0 to 84.9): it fits with a probability of 47%",
        conditions=_STATUS["conditions"][:1],
        probes=[*probes[:2], without_end(probes[2])],
        attempts=None,
        plan=None,
        oomRetries=0,
        gpuSecondsSpent=1_440,
        trainedSamples=0,
        totalSamples=0,
    )


def _condition(kind: str, reason: str, message: str, at: str, holds: str = "True") -> dict[str, Any]:
    return {
        "type": kind,
        "status": holds,
        "observedGeneration": 1,
        "lastTransitionTime": f"2026-03-01T{at}Z",
        "reason": reason,
        "message": message,
    }


def _bytes(lower: float, expected: float, upper: float) -> dict[str, int]:
    return {"lower": int(lower * GIB), "expected": int(expected * GIB), "upper": int(upper * GIB)}


def _peaks(device: float, outside: float) -> dict[str, int]:
    reserved = device - outside
    sizes = {"allocated": reserved * 0.93, "active": reserved * 0.95, "reserved": reserved, "device": device}
    return {**{name: int(size * GIB) for name, size in sizes.items()}, "total": TOTAL_BYTES}


def _probe(number: int, plan: str, predicted: float, begin: str, end: str, **more: Any) -> dict[str, Any]:
    return {
        "name": f"{NAME}-probe-{number}",
        "number": number,
        "plan": plan,
        "created": True,
        "startedAt": f"2026-03-01T{begin}Z",
        "endedAt": f"2026-03-01T{end}Z",
        "predictedBytes": int(predicted * GIB),
        **more,
    }


_STATUS: dict[str, Any] = {
    "phase": "Running",
    "observedGeneration": 1,
    "message": MESSAGE,
    "gpuProduct": "NVIDIA-A100-SXM4-80GB",
    "firstRunningAt": "2026-03-01T10:01:10Z",
    "gpuSecondsSpent": 2_160,
    "oomRetries": 1,
    "trainedSamples": 109_312,
    "totalSamples": 640_000,
    "conditions": [
        _condition("Predicted", "Predicted", PREDICTED, "10:00:02"),
        _condition("Tuned", "Measured", WON, "10:07:00"),
        _condition("Launched", "Relaunched", RELAUNCHED, "10:07:02"),
    ],
    "prediction": {
        "plan": "bf16-z2-none-mb1x32",
        "peakPhase": "loss",
        "deviceBytes": _bytes(46.2, 55.8, 67.3),
        "usableBytes": TOTAL_BYTES,
        "tokensPerSecond": 32_799,
        "components": [
            {"name": name, **_bytes(*sizes)}
            for name, *sizes in (
                ("weights", 12.4, 12.6, 12.7),
                ("master-weights", 3.1, 3.1, 3.2),
                ("optimizer-states", 6.1, 6.3, 6.5),
                ("gradients", 1.5, 1.6, 1.6),
                ("activations", 23.3, 26.1, 29.2),
                ("buckets", 0.8, 0.9, 1.1),
                ("logits", 1.5, 1.7, 2.0),
                ("allocator", 1.3, 2.0, 3.3),
                ("context", 0.3, 0.5, 0.7),
                ("nccl", 0.6, 1.0, 1.6),
            )
        ],
    },
    "plan": {"name": "bf16-z2-none-mb1x32", "hbm": "57.0/79.2Gi", "tokensPerSecond": 33_101},
    "probes": [
        _probe(
            1,
            "bf16-z2-none-mb1x32",
            55.8,
            "10:01:10",
            "10:02:40",
            verdict="succeeded",
            peakBytes=_peaks(57.0, 1.4),
            tokensPerSecond=33_101,
            stepSeconds=31.7,
            gpuSeconds=720,
        ),
        _probe(
            2,
            "bf16-z1-none-mb1x32",
            67.9,
            "10:03:00",
            "10:04:30",
            verdict="succeeded",
            peakBytes=_peaks(69.4, 1.4),
            tokensPerSecond=34_012,
            stepSeconds=30.8,
            gpuSeconds=720,
        ),
        _probe(
            3,
            "bf16-z2-none-mb2x16",
            85.1,
            "10:05:00",
            "10:06:30",
            verdict="device-oom",
            peakBytes=_peaks(78.3, 1.4),
            demandedBytes=int(82.0 * GIB),
            outOfMemory="activation",
            gpuSeconds=720,
            message="tried to allocate 3.62 GiB on rank 0 with 78.3 GiB in use, in backward",
        ),
    ],
    "attempts": [
        {
            **_probe(1, "bf16-z1-none-mb1x32", 69.4, "10:07:30", "13:48:10"),
            "name": f"{NAME}-train-1",
            "verdict": "device-oom",
            "peakBytes": _peaks(79.0, 1.6),
            "demandedBytes": int(80.9 * GIB),
            "outOfMemory": "activation",
            "allocatorRetries": 3,
            "tokensPerSecond": 33_790,
            "stepSeconds": 31.0,
            "gpuSeconds": 105_920,
            "trained": True,
            "checkpoint": "saved",
            "checkpointSamples": 102_400,
            "checkpointFormat": "deepspeed",
            "message": OUT_OF_MEMORY,
        },
        {
            "name": f"{NAME}-train-2",
            "number": 2,
            "plan": "bf16-z2-none-mb1x32",
            "created": True,
            "startedAt": "2026-03-01T13:50:00Z",
            "predictedBytes": int(57.0 * GIB),
            "rung": "sharding",
            "resumedSamples": 102_400,
            "resume": "direct",
            "trained": True,
        },
    ],
}
