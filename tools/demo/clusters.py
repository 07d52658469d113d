"""The clusters that the demo can run on: how each is started, gets its images and is accessed."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from kubernetes import client, config

from dev.cluster import binaries
from dev.cluster.builds import OURS, image_name
from tools.demo.terminal import BUILD, KIND_CLUSTER, KIND_MADE, DemoError, answer, call, step
from tools.demo.ways import registry
from tools.kind_cluster import GPU, KindError, advertise_gpus, build_images


@dataclass(frozen=True)
class Pages:
    """The URLs of the dashboards page and of Prometheus."""

    dashboards: str
    prometheus: str


class DemoCluster(Protocol):
    """A cluster that is ready for the chart after it is started."""

    # : None if kubectl finds it by default.
    kubeconfig: str | None
    # : Whether existing objects of others may be replaced.
    is_ours: bool

    def start(self) -> None: ...
    def images(self) -> dict[str, Any]: ...
    def pages(self) -> Pages | None: ...
    def kubectl(self) -> str: ...


class DevCluster:
    """The dev cluster (dev/cluster/), with Prometheus and the dashboards."""

    is_ours = True

    def __init__(self) -> None:
        self.kubeconfig: str | None = None

    def start(self) -> None:
        with step("A Kubernetes of two nodes with 8 virtual GPUs each"):
            _devcluster("up", "--nodes", "2")
            self.kubeconfig = answer(sys.executable, "-m", "dev.cluster", "kubeconfig")
        with step("The images of operator and runner"):
            _devcluster("load", *OURS)

    def images(self) -> dict[str, Any]:
        return _values(image_name("operator"), image_name("runner"))

    def pages(self) -> Pages:
        with step("Prometheus and the dashboards"):
            dashboards, prometheus = (
                answer(sys.executable, "-m", "dev.cluster", part).splitlines()[-1]
                for part in ("dashboards", "prometheus")
            )
        return Pages(dashboards, prometheus)

    def kubectl(self) -> str:
        return f"{binaries.command('kubectl')} --kubeconfig {self.kubeconfig}"


class Kind:
    """A kind cluster in the local Docker, with its own kubeconfig."""

    is_ours = True

    def __init__(self) -> None:
        self.kubeconfig: str | None = str(BUILD / "kubeconfig")

    def start(self) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        own = ("--name", KIND_CLUSTER, "--kubeconfig", str(self.kubeconfig))
        with step(f"The kind cluster {KIND_CLUSTER}"):
            if KIND_CLUSTER in answer("kind", "get", "clusters").splitlines():
                call("kind", "export", "kubeconfig", *own)
            else:
                KIND_MADE.touch()  # first, so that an interrupted start is cleaned up as well
                call("kind", "create", "cluster", *own, "--wait", "120s")
            with config.new_client_from_config(self.kubeconfig) as connection:
                core: Any = client.CoreV1Api(connection)
                for node in core.list_node().items:
                    advertise_gpus(core, node.metadata.name)
        with step("The images of operator and runner"):
            try:
                images = build_images()
            except KindError as error:
                raise DemoError(str(error)) from error
            call("kind", "load", "docker-image", *images, "--name", KIND_CLUSTER)

    def images(self) -> dict[str, Any]:
        return _values(image_name("operator"), image_name("runner"))

    def pages(self) -> None:
        return None

    def kubectl(self) -> str:
        return _any_kubectl(self.kubeconfig)


class Current:
    """The cluster of the user's current context. Objects of others are not touched."""

    is_ours = False
    kubeconfig: str | None = None

    def start(self) -> None:
        self._registry = registry(os.environ)
        try:
            context = config.list_kube_config_contexts()[1]["name"]
        except config.ConfigException as error:
            raise DemoError(f"CLUSTER=current finds no current context: {error}") from error
        with step(f"The cluster of the context {context}"), config.new_client_from_config() as connection:
            core: Any = client.CoreV1Api(connection)
            if not any(int((node.status.allocatable or {}).get(GPU, 0)) for node in core.list_node().items):
                raise DemoError(
                    f"no node of {context} advertises {GPU}, which a job on a virtual GPU asks for as well; "
                    f"`kubectl patch node NODE --subresource=status --patch "
                    f"""'{{"status": {{"capacity": {{"{GPU}": "1"}}}}}}'` makes one do so"""
                )

    def images(self) -> dict[str, Any]:
        tag = os.environ.get("TAG", "")
        return _values(f"{self._registry}/memtune-operator:{tag}", f"{self._registry}/memtune-runner:{tag}")

    def pages(self) -> None:
        return None

    def kubectl(self) -> str:
        return _any_kubectl(None)


CLUSTERS: dict[str, type[DevCluster] | type[Kind] | type[Current]] = {
    "devcluster": DevCluster,
    "kind": Kind,
    "current": Current,
}


def _devcluster(*words: str) -> None:
    call(sys.executable, "-m", "dev.cluster", *words)


def _values(operator: str, runner: str) -> dict[str, Any]:
    """The chart values for the images."""
    return {"image": _image(operator), "runnerImage": _image(runner)}


def _image(name: str) -> dict[str, str]:
    repository, _, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag}


def _any_kubectl(kubeconfig: str | None) -> str:
    if shutil.which("kubectl") is None:
        return ""
    return f"kubectl --kubeconfig {kubeconfig}" if kubeconfig else "kubectl"
