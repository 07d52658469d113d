"""A model that nobody described, on a real cluster: traced, probed, trained, and known to the next job if it is sure to
be the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_process import Jobs, OperatorProcess
from pods import Cluster, eventually

from dev.cluster.shell import run
from memtune.memory.traced_model import read_traced
from memtune_operator.kubernetes import traces

_EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
_CODE = (_EXAMPLES / "scripts" / "own_model.py").read_text()
_CONFIG_MAP = "own-code"
# Any tag but `latest`, which Kubernetes would try to pull.
_OWN_IMAGE = "localhost/memtune-own-model:dev"
_PLACES = {"code": "/code", "saved": "/checkpoints"}


def own_model(name: str, image: str, is_mounted: bool, **tuning: Any) -> dict[str, Any]:
    """The example on as few plans as possible, its script mounted into the image or in it already."""
    job: dict[str, Any] = yaml.safe_load((_EXAMPLES / "own-model.yaml").read_text())
    code = [{"name": "code", "configMap": {"name": _CONFIG_MAP}}] if is_mounted else []
    volumes: list[dict[str, Any]] = [*code, {"name": "saved", "emptyDir": {}}]
    container = {
        "name": "trainer",
        "image": image,
        "command": ["python3", "own_model.py"],
        "workingDir": _PLACES["code"] if is_mounted else "/app",
        "volumeMounts": [{"name": each["name"], "mountPath": _PLACES[each["name"]]} for each in volumes],
    }
    space = {"precision": ["bf16"], "checkpointing": ["none"], "backends": ["ddp"]}
    changes = {
        "model": {**job["spec"]["model"], "factory": "own_model:build"},
        "template": {"spec": {"containers": [container], "volumes": volumes}},
        "checkpoint": {"path": "/checkpoints"},
        "tuning": {"space": space, "maxProbes": 1, "probeSteps": 2, **tuning},
    }
    return {**job, "metadata": {"name": name}, "spec": {**job["spec"], **changes}}


@pytest.fixture
def own_image(images: dict[str, str], devcluster: Callable[..., str], tmp_path: Path) -> str:
    """The runner's image with the example's script in it, on every node."""
    (tmp_path / "own_model.py").write_text(_CODE)
    (tmp_path / "Dockerfile").write_text(f"FROM {images['runner']}\nCOPY own_model.py /app/\n")
    build = ["buildah", "bud", "--isolation=chroot", "--storage-driver=overlay", "--layers", "--tag", _OWN_IMAGE]
    run([*build, str(tmp_path)])
    devcluster("load", _OWN_IMAGE)
    return _OWN_IMAGE


@pytest.mark.xdist_group("devcluster")
@pytest.mark.slow
def test_a_factory_in_the_image_is_traced_once_per_namespace(
    cluster: Cluster, namespace: str, jobs: Jobs, own_image: str, operator: OperatorProcess
) -> None:
    jobs.apply(own_model("first", own_image, is_mounted=False))
    jobs.wait_for("first", "Predicting")
    # No other phase waits so long for something that is no run of a plan.
    operator.kill()
    operator.start()
    status = jobs.wait_for("first", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status["message"]
    assert (status["trace"]["number"], status["trace"]["verdict"]) == (1, "succeeded")
    assert "Mixer, 84,736 parameters, 4 repeated blocks" in status["trace"]["message"]
    (probe,) = status["probes"]
    assert abs(probe["predictedBytes"] / probe["peakBytes"]["device"] - 1) < 0.1
    kept = cluster.core.read_namespaced_config_map(traces.NAME, namespace)
    (key,) = kept.data
    assert read_traced(traces.recall({"data": kept.data}, key)).trace.total == 84_736
    assert traces.image_of({"data": kept.data}, key).startswith("sha256:")

    jobs.apply(own_model("second", own_image, is_mounted=False, mode="PredictOnly"))
    status = jobs.wait_for("second", "Succeeded", "Failed", seconds=30)
    assert (status["phase"], status.get("trace")) == ("Succeeded", None), status["message"]
    assert status["prediction"]["deviceBytes"]["expected"] > 0
    pods = [pod.metadata.name for pod in cluster.core.list_namespaced_pod(namespace).items]
    assert [name for name in pods if name.startswith("second") or "-trace-" in name] == []


@pytest.mark.usefixtures("operator")
def test_a_mounted_factory_is_traced_for_each_job(
    cluster: Cluster, namespace: str, jobs: Jobs, images: dict[str, str]
) -> None:
    config_map = {"metadata": {"name": _CONFIG_MAP}, "data": {"own_model.py": _CODE}}
    cluster.core.create_namespaced_config_map(namespace, config_map)
    jobs.apply(own_model("first", images["runner"], is_mounted=True, mode="PredictOnly"))
    status = jobs.wait_for("first", "Succeeded", "Failed", seconds=120)
    assert status["phase"] == "Succeeded", status["message"]
    assert "Mixer, 84,736 parameters, 4 repeated blocks" in status["trace"]["message"]

    # As long as a pod of it mounts a ConfigMap, a node may go on with what it has read.
    eventually(lambda: not cluster.core.list_namespaced_pod(namespace).items, "the first job's pod to go")
    edited = {
        "own_model.py": _CODE.replace("VOCABULARY, STEPS, SAVE_EVERY = 256", "VOCABULARY, STEPS, SAVE_EVERY = 512")
    }
    cluster.core.patch_namespaced_config_map(_CONFIG_MAP, namespace, {"data": edited})
    jobs.apply(own_model("second", images["runner"], is_mounted=True, mode="PredictOnly"))
    status = jobs.wait_for("second", "Succeeded", "Failed", seconds=120)
    assert status["phase"] == "Succeeded", status["message"]
    assert "Mixer, 117,760 parameters, 4 repeated blocks" in status["trace"]["message"]
    kept = [each.metadata.name for each in cluster.core.list_namespaced_config_map(namespace).items]
    assert traces.NAME not in kept
