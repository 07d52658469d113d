"""JSON and YAML output: versioned, and stable within a version (held by a contract test)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from memtune.memory.prediction import Interval, Prediction
from memtune.planning.space import Candidate, Dropped
from memtune.plans.plan import Plan
from memtune_cli.input.prediction_case import PredictionCase

VERSION = 1


def header(command: str, case: PredictionCase) -> dict[str, Any]:
    """The header of documents about one GPU."""
    return {**_begun(command, case), **gpu(case), **_asked(case)}


def header_of_several(command: str, case: PredictionCase) -> dict[str, Any]:
    """The header of documents about several GPUs."""
    return {**_begun(command, case), **_asked(case)}


def gpu(case: PredictionCase) -> dict[str, Any]:
    """The GPU, and its price if known."""
    found = case.workload.gpu
    return {
        "gpu": {"name": found.name, "usableBytes": found.usable_bytes, "guessed": found.guessed},
        **({"gpuHourPrice": case.gpu_hour_price} if case.gpu_hour_price is not None else {}),
    }


def _begun(command: str, case: PredictionCase) -> dict[str, Any]:
    return {"version": VERSION, "command": command, "job": case.name}


def _asked(case: PredictionCase) -> dict[str, Any]:
    workload = case.workload
    return {
        "nodes": workload.nodes,
        "gpusPerNode": workload.gpus_per_node,
        "globalBatchSize": workload.global_batch,
        "headroom": case.headroom,
        "objective": case.objective,
        "notes": list(case.notes),
    }


def detail(case: PredictionCase, plan: Plan, prediction: Prediction) -> dict[str, Any]:
    """One plan with all its predictions."""
    metrics = ("requested", "allocated", "active", "reserved", "device", "needed")
    return {
        "plan": str(plan),
        "knobs": plan.to_json(),
        "fits": case.fits_gpu_and_host(plan, prediction),
        "fitProbability": _probability(case, prediction),
        "peakPhase": prediction.peak_phase,
        "bytes": {metric: _bytes(getattr(prediction, metric)) for metric in metrics},
        "components": [{"name": part.name, **_bytes(part.bytes)} for part in prediction.components],
        "phaseBytes": {name: _bytes(size) for name, size in prediction.phases.items()},
        "hostBytesPerPod": case.host(plan).required_bytes,
        **_speed(case, prediction),
    }


def brief(case: PredictionCase, candidate: Candidate | Dropped) -> dict[str, Any]:
    """The short form of a candidate."""
    prediction = candidate.prediction
    reason = {"reason": candidate.reason} if isinstance(candidate, Dropped) else {}
    return {
        "plan": str(candidate.plan),
        "deviceBytes": _bytes(prediction.device),
        "neededBytes": _bytes(prediction.needed),
        "fitProbability": _probability(case, prediction),
        **_speed(case, prediction),
        **reason,
    }


def dump(document: Mapping[str, Any], form: str) -> str:
    """The document as JSON or YAML."""
    if form == "json":
        return json.dumps(document, indent=2, ensure_ascii=False)
    import yaml

    return str(yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)).rstrip("\n")


def briefs(case: PredictionCase, candidates: Sequence[Candidate | Dropped]) -> list[dict[str, Any]]:
    """The short form of each candidate."""
    return [brief(case, candidate) for candidate in candidates]


def _bytes(interval: Interval) -> dict[str, int]:
    return {name: round(value) for name, value in interval._asdict().items()}


def _probability(case: PredictionCase, prediction: Prediction) -> float:
    return round(case.fit_probability(prediction), 3)


def _speed(case: PredictionCase, prediction: Prediction) -> dict[str, Any]:
    cost = case.cost(prediction)
    return {
        "stepSeconds": {name: round(value, 4) for name, value in prediction.step_seconds._asdict().items()},
        "tokensPerSecond": {name: round(value, 1) for name, value in prediction.tokens_per_second._asdict().items()},
        **({"costPerMillionTokens": cost._asdict()} if cost else {}),
    }
