"""Emulated runs in pods without GPUs: probes of a job on real GPUs, and all runs of a job on emulated ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_process import Jobs, OperatorProcess
from pods import IMAGE, Cluster, eventually

_GPU = "NVIDIA-H100-80GB-HBM3"
_ROOT = Path(__file__).resolve().parents[3]
_CUDA = _ROOT / ".venv-emulated"
# What runs on this machine runs in a pod that sees its files: both environments, and the C compiler.
_MOUNTED = dict.fromkeys(("/usr", sys.base_prefix, str(_ROOT), str(_CUDA.resolve().parent)))

pytestmark = [
    pytest.mark.xdist_group("gpu-products"),
    pytest.mark.skipif(not (_CUDA / "bin" / "python").exists(), reason="there is no .venv-emulated: make env-emulated"),
    pytest.mark.usefixtures("devcluster", "h100s"),  # whose nodes are this machine
]


@pytest.fixture(scope="module")
def h100s(cluster: Cluster) -> Iterator[None]:
    """Nodes that say which GPUs they have, as NVIDIA's GPU feature discovery does."""
    nodes = list(cluster.images_by_node())
    for node in nodes:
        cluster.core.patch_node(node, {"metadata": {"labels": {"nvidia.com/gpu.product": _GPU}}})
    yield
    for node in nodes:
        cluster.core.patch_node(node, {"metadata": {"labels": {"nvidia.com/gpu.product": None}}})


def job(directory: Path, emulation: str) -> dict[str, Any]:
    """The example of a loop under torchrun, whose Python has a CUDA build of torch on an emulated GPU alone."""
    directory.chmod(0o755)
    program = directory / "python"
    ours = f'exec {_ROOT}/.venv/bin/python "$@"'
    program.write_text(f'#!/bin/sh\n[ "$MEMTUNE_DEVICE" = emulated ] && exec {_CUDA}/bin/python "$@"\n{ours}\n')
    program.chmod(0o755)
    documents = yaml.safe_load_all((_ROOT / "examples" / "env.yaml").read_text())
    found: dict[str, Any] = next(each for each in documents if each["kind"] == "MemoryTunedJob")
    mounted = [*_MOUNTED, str(directory)]
    trainer = {
        "name": "trainer",
        "image": IMAGE,
        "command": [str(program), "-m", "torch.distributed.run", "examples/scripts/checkpointed_loop.py"],
        "workingDir": str(_ROOT),
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "CC", "value": "gcc"}],
        "volumeMounts": [{"name": f"host-{n}", "mountPath": path, "readOnly": True} for n, path in enumerate(mounted)],
    }
    volumes = [{"name": f"host-{n}", "hostPath": {"path": path}} for n, path in enumerate(mounted)]
    spec = found["spec"]
    spec["resources"] = {"gpuMemory": "8Gi", "device": "virtual", "gpuProduct": _GPU}
    spec["tuning"] |= {"emulation": emulation, "maxProbes": 1}
    spec["template"] = {"spec": {"containers": [trainer], "volumes": volumes}}
    spec["runner"] = {"python": str(program)}
    spec["checkpoint"] = {"path": "/checkpoints", "volume": {"hostPath": {"path": str(directory / "saved")}}}
    (directory / "saved").mkdir(mode=0o777)
    (directory / "saved").chmod(0o777)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_plans_are_emulated_before_the_probe_and_the_launch(
    cluster: Cluster, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    jobs.apply(job(tmp_path, "Auto"))
    status = jobs.wait_for("env", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status
    (emulation,), (probe,), (attempt,) = status["emulations"], status["probes"], status["attempts"]
    assert [each["verdict"] for each in (emulation, probe, attempt)] == ["succeeded"] * 3
    assert emulation["plan"] == probe["plan"] == attempt["plan"]
    assert (emulation["gpu"], emulation["emulated"], probe["emulated"]) == ("h100-80gb", True, False)
    assert emulation["peakBytes"]["reserved"] > 0
    assert (emulation["gpuSeconds"], status["gpuSecondsSpent"]) == (0, probe["gpuSeconds"])
    said = " ".join(f"{event.reason}: {event.message}" for event in cluster.core.list_namespaced_event(namespace).items)
    assert "EmulatedProbeEnded: emulated probe 1" in said
    assert "ProbeEnded: probe 1" in said


@pytest.mark.usefixtures("operator")
def test_emulation_only_requests_no_gpu_before_the_launch(jobs: Jobs, tmp_path: Path) -> None:
    jobs.apply(job(tmp_path, "Only"))
    status = jobs.wait_for("env", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status
    assert (status["probes"], status["gpuSecondsSpent"]) == ([], 0)
    assert jobs.condition("env", "Tuned")["reason"] == "Emulated"


@pytest.mark.slow
def test_a_restarted_operator_continues_the_same_emulated_probe(
    operator: OperatorProcess, jobs: Jobs, tmp_path: Path
) -> None:
    jobs.apply(job(tmp_path, "Only"))
    eventually(lambda: jobs.status("env").get("emulations"), "an emulated probe to be recorded")
    operator.kill()
    operator.start()
    status = jobs.wait_for("env", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status
    assert [each["number"] for each in status["emulations"]] == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_an_image_without_cuda_torch_is_reported_and_probed(jobs: Jobs, tmp_path: Path) -> None:
    found = job(tmp_path, "Auto")
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {_ROOT}/.venv/bin/python "$@"\n')
    jobs.apply(found)
    status = jobs.wait_for("env", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status
    (emulation,) = status["emulations"]
    assert emulation["verdict"] == "user-error"
    assert "was not built for CUDA" in emulation["message"]
    assert len(status["probes"]) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_a_job_on_emulated_gpus_recovers_in_pods_without_gpus(
    cluster: Cluster, namespace: str, jobs: Jobs, tmp_path: Path
) -> None:
    found = job(tmp_path, "Never")
    documents = yaml.safe_load_all((_ROOT / "examples" / "quickstart.yaml").read_text())
    quickstart = next(each["spec"] for each in documents if each["kind"] == "MemoryTunedJob")
    (trainer,) = found["spec"]["template"]["spec"]["containers"]
    trainer["command"] = [trainer["command"][0], "-m", "memtune_runner.trainer", "--steps", "6", "--save-every", "2"]
    shrink = {"afterStep": 3, "by": "24%"}
    resources = {"gpuMemory": "900Mi", "device": "emulated", "gpuProduct": _GPU, "shrink": shrink}
    space = {"precision": ["fp32"], "checkpointing": ["full"], "backends": ["ddp"]}
    tuning = {"space": space, "maxProbes": 1, "probeSteps": 2}
    jobs.apply(
        {
            **found,
            "spec": {
                **found["spec"],
                **{part: quickstart[part] for part in ("model", "training")},
                "integration": "sdk",
                "resources": resources,
                "tuning": tuning,
            },
        }
    )
    status = jobs.wait_for("env", "Succeeded", "Failed")
    assert status["phase"] == "Succeeded", status
    first, second = status["attempts"]
    assert [(each["verdict"], each["emulated"]) for each in (first, second)] == [
        ("device-oom", True),
        ("succeeded", True),
    ]
    assert second["resumedSamples"] > 0
    pods = cluster.core.list_namespaced_pod(namespace).items
    limits = [each.resources.limits or {} for pod in pods for each in pod.spec.containers]
    assert not any("nvidia.com/gpu" in each for each in limits)
    assert [each.name for each in (tmp_path / "saved").iterdir()] == ["memtune-emulated"]
