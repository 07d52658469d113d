"""The operator's and the runner's images in pods as strict as a cluster can ask for, and what is not in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pods import Cluster, pod

from dev.cluster import pip_settings
from dev.cluster.shell import run

PUBLIC_INDEX = "https://pypi.org/simple"

STRICT = {
    # No user is named: the image's own must be a number that is not root's, or the kubelet refuses.
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
NOT_ROOT = (
    "import os; assert os.getuid() == 65532; assert not os.access('/app', os.W_OK); open('/tmp/x', 'w').close()\n"
)
OPERATOR = """
import importlib.util
import kopf, kubernetes.aio, optuna, prometheus_client, memtune.api, memtune_operator
assert importlib.util.find_spec("torch") is None
optuna.logging.disable_default_handler()
study = optuna.create_study()
study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=15)
size_bytes = 0
for directory, names, files in os.walk("/"):
    if directory == "/":
        names[:] = set(names) - {"proc", "sys", "dev", "tmp"}
    size_bytes += sum(os.lstat(os.path.join(directory, name)).st_size for name in files)
print(f"{size_bytes / 1e6:.0f} MB", flush=True)
assert size_bytes < 300e6
print("operator")
"""
RUNNER = """
import deepspeed, prometheus_client, torch, memtune, memtune_runner
from memtune_runner.emulated.build import CUDA_MAJORS, prebuilt_library
assert torch.version.cuda is None
assert all(prebuilt_library(major).exists() for major in CUDA_MAJORS)
model = torch.nn.Linear(4, 4)
config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
engine, *_ = deepspeed.initialize(model=model, config=config, dist_init_required=True)
engine.backward(engine(torch.ones(1, 4)).sum())
engine.step()
print("runner")
"""


def strict_pod(image: str, script: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image,
        "command": ["python3", "-c", NOT_ROOT + script],
        "securityContext": STRICT,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return pod("strict", container, volumes=[{"name": "tmp", "emptyDir": {}}])


@pytest.mark.parametrize(("image", "script"), [("operator", OPERATOR), ("runner", RUNNER)])
def test_an_image_runs_without_root_on_a_read_only_file_system(
    cluster: Cluster, namespace: str, images: dict[str, str], image: str, script: str
) -> None:
    ended = cluster.finish(namespace, strict_pod(images[image], script), seconds=180)
    assert ended.status.phase == "Succeeded", cluster.log(namespace, "strict")
    assert image in cluster.log(namespace, "strict").splitlines()


@pytest.mark.usefixtures("devcluster")  # others build with their own settings, and with something else than buildah
@pytest.mark.parametrize("image", ["operator", pytest.param("runner", marks=pytest.mark.slow)])
def test_images_contain_no_package_settings_of_the_build_machine(
    cluster: Cluster, namespace: str, images: dict[str, str], image: str
) -> None:
    contents = [path.read_text() for path in pip_settings.files(os.environ, Path.home()) if path.is_file()]
    lent = pip_settings.settings(contents, os.environ)
    described = run(["buildah", "inspect", "--type=image", images[image]])
    assert [name for name in ("pip.conf", *lent.values()) if name in described] == []
    # Debian and Python's own images have certificates at the same path.
    del lent["cert"]
    places = {word.rstrip("/") for value in lent.values() for word in value.split() if "/" in word} - {PUBLIC_INDEX}
    paths = ["/etc/pip.conf", *map(str, pip_settings.local_paths(lent))]
    script = f"""
import pathlib
found = [path for path in {paths} if os.path.exists(path)]
for root in ("/etc", "/opt/memtune", "/app"):
    for path in pathlib.Path(root).rglob("*"):
        if path.is_file() and os.access(path, os.R_OK) and path.stat().st_size < 1 << 20:
            content = path.read_bytes()
            found += [f"{{value}} in {{path}}" for value in {sorted(places)} if value.encode() in content]
print(found)
"""
    ended = cluster.finish(namespace, strict_pod(images[image], script))
    assert (ended.status.phase, cluster.log(namespace, "strict")) == ("Succeeded", "[]\n")
