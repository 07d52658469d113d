"""`make kind`: its calls of docker and kind, which are stubs here, and of the nodes' API server."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_api_server import ApiServer, api_server, listed

from dev.cluster.builds import OURS, image_name
from dev.cluster.versions import BASE_IMAGE
from tools import kind_cluster

NODES = ("memtune-tests-control-plane", "memtune-tests-worker")
IMAGES = [*(image_name(image) for image in OURS), BASE_IMAGE]
# Records its arguments. `kind create` writes a kubeconfig, and `kind get nodes` names two nodes.
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >>"$ASKED"
for word in "$@"; do
    case "$1-$word" in create---kubeconfig=*) cp "$KUBECONFIG_OF_KIND" "${word#--kubeconfig=}" ;; esac
done
[ "$1-$2" != get-nodes ] || printf 'memtune-tests-control-plane\\nmemtune-tests-worker\\n'
[ "$1-$2" != "exec-$STOPPED_NODE" ]
"""


def node(name: str, images: list[str], gpus: int) -> dict[str, Any]:
    status = {"images": [{"names": [image]} for image in images], "allocatable": {kind_cluster.GPU: str(gpus)}}
    return {"metadata": {"name": name}, "status": status}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


@pytest.fixture
def asked(tmp_path: Path, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the executed commands; this machine's docker, kind and kubeconfig are not used."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("docker", "kind"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("STOPPED_NODE", "none")
    monkeypatch.setenv("KUBECONFIG_OF_KIND", api.kubeconfig(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return tmp_path / "asked"


def test_up_makes_two_nodes_with_images_and_gpus(
    tmp_path: Path, api: ApiServer, asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The nodes as they are, without the images, with half of what is needed, with all of it.
    states: list[tuple[list[str], int]] = [([], 0), ([], 0), (IMAGES[:1], 8), (IMAGES, 8)]
    api.answer("/api/v1/nodes", *(listed(*(node(name, images, gpus) for name in NODES)) for images, gpus in states))
    work = tmp_path / "kind"
    assert kind_cluster.main(["up", "1.29"], work) == 0
    assert capsys.readouterr().out == f"export MEMTUNE_KUBECONFIG={work}/kubeconfig\n"
    commands = asked.read_text().splitlines()
    built = [command for command in commands if command.startswith("docker build")]
    assert [f"--tag={image}" in command for image, command in zip(IMAGES[:2], built, strict=True)] == [True, True]
    assert "--build-arg=TORCH_BUILD=cpu" in built[1]
    assert commands[-4:-2] == [
        f"docker pull {kind_cluster.PYTHON_IMAGE}",
        f"docker tag {kind_cluster.PYTHON_IMAGE} {BASE_IMAGE}",
    ]
    assert f"--image={kind_cluster.RELEASES['1.29'].node_image}" in commands[-2]
    assert commands[-1] == f"kind load docker-image --name=memtune-tests {' '.join(IMAGES)}"
    cluster = json.loads((work / "cluster.yaml").read_text())
    mount = {"hostPath": str(work / "shared"), "containerPath": str(work / "shared")}
    assert [each["extraMounts"] for each in cluster["nodes"]] == [[mount], [mount]]
    changes = ("", {"spec": {"taints": None}}), ("/status", {"status": {"capacity": {"nvidia.com/gpu": "8"}}})
    assert api.patched == [(f"/api/v1/nodes/{name}{path}", body) for name in NODES for path, body in changes]


def test_the_small_image_is_the_one_that_our_images_build_on() -> None:
    for image in OURS:
        dockerfile = (kind_cluster.ROOT / "images" / f"{image}.Dockerfile").read_text()
        assert f"/{kind_cluster.PYTHON_IMAGE}\n" in dockerfile


@pytest.mark.usefixtures("asked")
def test_resources_that_a_node_never_reports_are_named(
    tmp_path: Path, api: ApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kind_cluster, "_SECONDS", 0.0)
    api.answer("/api/v1/nodes", listed(node("worker", IMAGES[1:], 0)))
    assert kind_cluster.main(["up", "1.36"], tmp_path / "kind") == 1
    assert capsys.readouterr().err == (
        f"kind: after 0 s: worker does not report image {IMAGES[0]}; worker does not report 8 GPUs. "
        "`make kind-down`, then `make kind` again\n"
    )


def test_without_docker_or_a_cluster_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kind_cluster.main(["up", "1.36"], tmp_path) == 1
    assert "there is no docker on this machine: install it" in capsys.readouterr().err
    assert kind_cluster.main(["down"], tmp_path) == 1
    assert "there is no docker on this machine: install it" in capsys.readouterr().err
    assert kind_cluster.main(["test"], tmp_path) == 1
    assert capsys.readouterr().err == "kind: no kind cluster is up: run `make kind` first\n"


def test_tests_run_on_it_with_a_directory_that_its_nodes_see(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "kubeconfig").touch()
    test = tmp_path / "test_environment.py"
    test.write_text(
        "import os\n"
        "def test_environment(tmp_path):\n"
        f"    assert os.environ['MEMTUNE_KUBECONFIG'] == {str(tmp_path / 'kubeconfig')!r}\n"
        f"    assert str(tmp_path).startswith({str(tmp_path / 'shared')!r})\n"
    )
    assert kind_cluster.main(["test", str(test)], tmp_path) == 0
    assert "1 passed" in capfd.readouterr().out


def test_down_ends_it_and_leaves_nothing(tmp_path: Path, asked: Path) -> None:
    work = tmp_path / "kind"
    work.mkdir()
    assert kind_cluster.main(["down"], work) == 0
    assert asked.read_text().splitlines() == [
        "kind get nodes --name=memtune-tests",
        f"docker exec memtune-tests-control-plane find {work}/shared -mindepth 1 -delete",
        f"kind delete cluster --name=memtune-tests --kubeconfig={work}/kubeconfig",
    ]
    assert not work.exists()


def test_down_ends_it_where_no_directory_of_it_is_left(tmp_path: Path, asked: Path) -> None:
    work = tmp_path / "kind"
    assert kind_cluster.main(["down"], work) == 0
    assert asked.read_text().splitlines()[-1].startswith("kind delete cluster --name=memtune-tests")


def test_down_asks_the_next_node_where_one_is_stopped(
    tmp_path: Path, asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOPPED_NODE", NODES[0])
    (tmp_path / "kind").mkdir()
    assert kind_cluster.main(["down"], tmp_path / "kind") == 0
    commands = [" ".join(command.split()[:3]) for command in asked.read_text().splitlines()]
    assert commands[1:] == [*(f"docker exec {name}" for name in NODES), "kind delete cluster"]


@pytest.mark.usefixtures("asked")
def test_down_names_what_it_could_not_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kind").mkdir()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    assert kind_cluster.main(["down"], tmp_path / "kind") == 1
    assert f"the cluster has ended, but files in {tmp_path}/kind belong to its pods" in capsys.readouterr().err
