"""A model that nobody described, on a real cluster: traced once, probed, trained, and known to the next job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_process import Jobs
from pods import Cluster

from memtune.replay.traced import read_traced
from memtune_operator import kept_traces

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_CODE = "own-code"


def own_model(name: str, image: str, **tuning: Any) -> dict[str, Any]:
    """The example in our own image, with the user's script mounted into it, on as few plans as possible."""
    job: dict[str, Any] = yaml.safe_load((_EXAMPLES / "own-model.yaml").read_text())
    container = {
        "name": "trainer",
        "image": image,
        "command": ["python3", "own_model.py"],
        "workingDir": "/code",
        "volumeMounts": [{"name": "code", "mountPath": "/code"}, {"name": "saved", "mountPath": "/checkpoints"}],
    }
    volumes = [{"name": "code", "configMap": {"name": _CODE}}, {"name": "saved", "emptyDir": {}}]
    space = {"precision": ["bf16"], "checkpointing": ["none"], "backends": ["ddp"]}
    changes = {
        "model": {**job["spec"]["model"], "factory": "own_model:build"},
        "template": {"spec": {"containers": [container], "volumes": volumes}},
        "checkpoint": {"path": "/checkpoints"},
        "tuning": {"space": space, "maxProbes": 1, "probeSteps": 2, **tuning},
    }
    return {**job, "metadata": {"name": name}, "spec": {**job["spec"], **changes}}


@pytest.mark.usefixtures("operator")
def test_a_factory_is_traced_once_for_its_namespace(
    cluster: Cluster, namespace: str, jobs: Jobs, images: dict[str, str]
) -> None:
    code = {"own_model.py": (_EXAMPLES / "scripts" / "own_model.py").read_text()}
    cluster.core.create_namespaced_config_map(namespace, {"metadata": {"name": _CODE}, "data": code})
    jobs.apply(own_model("first", images["runner"]))
    status = jobs.wait_for("first", "Succeeded", "Failed", seconds=300)
    assert status["phase"] == "Succeeded", status["message"]
    assert (status["trace"]["number"], status["trace"]["verdict"]) == (1, "succeeded")
    assert "Mixer, 84,736 parameters, 4 repeated blocks" in status["trace"]["message"]
    (probe,) = status["probes"]
    assert abs(probe["predictedBytes"] / probe["peakBytes"]["device"] - 1) < 0.1
    kept = cluster.core.read_namespaced_config_map(kept_traces.NAME, namespace)
    (key,) = kept.data
    assert read_traced(kept_traces.recall({"data": kept.data}, key)).trace.total == 84_736
    assert kept_traces.image_of({"data": kept.data}, key).startswith("sha256:")

    jobs.apply(own_model("second", images["runner"], mode="PredictOnly"))
    status = jobs.wait_for("second", "Succeeded", "Failed", seconds=30)
    assert (status["phase"], status.get("trace")) == ("Succeeded", None), status["message"]
    assert status["prediction"]["deviceBytes"]["expected"] > 0
    pods = [pod.metadata.name for pod in cluster.core.list_namespaced_pod(namespace).items]
    assert [name for name in pods if name.startswith("second") or "-trace-" in name] == []
