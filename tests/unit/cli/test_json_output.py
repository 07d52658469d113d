"""The command's JSON is a contract: names, order and types are stable within a version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memtune_cli.main import main

JOB = str(Path(__file__).parents[3] / "examples" / "llama-7b-8gpu.yaml")

HEADER = {
    "version": "1",
    "command": "text",
    "job": "text",
    "gpu": {"name": "text", "usableBytes": "integer", "guessed": "boolean"},
    "nodes": "integer",
    "gpusPerNode": "integer",
    "globalBatchSize": "integer",
    "headroom": "number",
    "objective": "text",
    "notes": [],
}
BYTES = {"lower": "integer", "expected": "integer", "upper": "integer"}
NUMBERS = {"lower": "number", "expected": "number", "upper": "number"}
SPEED = {"stepSeconds": NUMBERS, "tokensPerSecond": NUMBERS}
KNOBS = {
    "precision": "text",
    "sharding": "text",
    "checkpointing": "text",
    "microBatch": "integer",
    "accumulation": "integer",
    "offload": "text",
    "optimizer": "text",
    "fusedOptimizer": "boolean",
    "gradientDtype": "text",
    "attention": "text",
    "fusedLoss": "boolean",
    "bucketElements": "integer",
    "expandableSegments": "boolean",
    "maxSplitSizeMib": "integer",
}
PHASES = ("init", "forward", "loss", "backward", "first layer", "reduce", "first step", "step", "evaluation", "save")
DETAIL = {
    "plan": "text",
    "knobs": KNOBS,
    "fits": "boolean",
    "fitProbability": "number",
    "peakPhase": "text",
    "bytes": dict.fromkeys(("requested", "allocated", "active", "reserved", "device", "needed"), BYTES),
    "components": [{"name": "text", **BYTES}],
    "phaseBytes": dict.fromkeys(PHASES, BYTES),
    "hostBytesPerPod": "integer",
    **SPEED,
}
BRIEF = {"plan": "text", "deviceBytes": BYTES, "neededBytes": BYTES, "fitProbability": "number", **SPEED}
REASONED = {**BRIEF, "reason": "text"}
TERM = {"name": "text", "bytes": "integer", "phases": ["text"], "formula": "text", "source": "text"}
HOST_TERM = {"name": "text", "bytes": "integer", "formula": "text", "source": "text"}

GOLDEN = {
    "plan": {
        **HEADER,
        "chosen": DETAIL,
        "fitting": [BRIEF],
        "uncertain": [REASONED],
        "dropped": [REASONED],
        "refused": [],
        "advice": [],
    },
    "estimate": {**HEADER, "estimate": DETAIL},
    "explain": {**HEADER, "plan": "text", "peakPhase": "text", "terms": [TERM], "host": [HOST_TERM]},
}


def shape(value: Any) -> Any:
    """Return the names and types of a document; all items of a list must be alike."""
    if isinstance(value, dict):
        return {name: "1" if name == "version" and inner == 1 else shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        shapes = [shape(item) for item in value]
        assert all(other == shapes[0] for other in shapes)
        return shapes[:1]
    return {bool: "boolean", int: "integer", float: "number", str: "text"}[type(value)]


@pytest.mark.parametrize("command", list(GOLDEN))
def test_the_shape_of_the_document_is_the_golden_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["--plan", "bf16-z3-full-mb1x32"] if command == "estimate" else []
    assert main([command, JOB, *plan, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert json.dumps(shape(document)) == json.dumps(GOLDEN[command])


def test_equal_input_gives_equal_output(capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for _ in range(2):
        main(["plan", JOB, "--format", "json"])
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]


def test_candidates_come_in_the_order_of_the_objective(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", JOB, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    rates = [candidate["tokensPerSecond"]["expected"] for candidate in document["fitting"]]
    assert rates == sorted(rates, reverse=True)
    needs = [candidate["deviceBytes"]["expected"] for candidate in document["dropped"]]
    assert needs == sorted(needs)
    assert document["chosen"]["plan"] == document["fitting"][0]["plan"]
    components = sum(part["expected"] for part in document["chosen"]["components"])
    assert components == pytest.approx(document["chosen"]["bytes"]["device"]["expected"], rel=1e-6)
