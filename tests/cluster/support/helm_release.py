"""The chart in a cluster, put there by Helm's own library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fast_yaml
import helm_python
from helm_chart import CHART, objects, only
from kubernetes import client
from pods import Cluster, eventually
from raw_api import RawApi

# The last chart before the present one, as it was packaged.
(PREVIOUS_CHART,) = (Path(__file__).parents[1] / "previous_charts").glob("*.tgz")
# Values for jobs of the release's own namespace alone, with the CRD somebody else's.
NAMESPACED: dict[str, Any] = {"rbac": {"scope": "namespaces"}, "crd": {"install": False}}
CRD = "memorytunedjobs.memtune.dev"

_SECONDS = 150


class Release:
    """One release in a namespace of its own, with our images."""

    def __init__(self, kubeconfig: str, namespace: str, images: dict[str, str], cluster: Cluster) -> None:
        # Its name has the chart's in it, so that all its objects have just this name.
        self.name = f"memtune-{namespace}"
        self.namespace = namespace
        self.helm = helm_python.Config(kubeconfig_path=kubeconfig, namespace=namespace)
        self._images = images
        self._cluster = cluster
        self._api = RawApi(cluster.connection)

    def install(self, values: dict[str, Any], chart: Path = CHART) -> str:
        """Wait until everything is ready; the notes that Helm shows."""
        try:
            return str(self.helm.install(chart, self.name, self._values(values), **_WAITING)["notes"])
        except helm_python.HelmError:
            # The namespace's own story would be told after the pods are gone.
            print(self._cluster.story(self.namespace))
            raise

    def create_without_operator(self, values: dict[str, Any]) -> None:
        """Make all objects, with an image that is not there: what is asked about is not the operator."""
        self.helm.install(CHART, self.name, {**values, "image": _image("localhost/absent:1")})

    def would_install(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        """What an installation would make in this cluster; nothing is made."""
        rendered = self.helm.install(CHART, self.name, self._values(values), dry_run="server")
        return [each for each in fast_yaml.load_all(rendered["manifest"]) if each]

    def upgrade(self, values: dict[str, Any], chart: Path = CHART) -> None:
        self.helm.upgrade(chart, self.name, self._values(values), **_WAITING)

    def rollback(self, revision: int) -> None:
        self.helm.rollback(self.name, version=revision, **_WAITING)

    def uninstall(self) -> None:
        """The operator is gone when this returns."""
        eventually(self._is_uninstalled, "Helm to have deleted the release", _SECONDS)
        eventually(lambda: not self.operators(), "the operator to be gone", _SECONDS)

    def _is_uninstalled(self) -> bool:
        """Whether Helm has deleted everything: it gives up at the first late answer of a busy API server."""
        try:
            self.helm.uninstall(self.name, ignore_not_found=True, **_WAITING)
        except helm_python.errors.HelmReleaseError as error:
            print(error)
            return False
        return True

    def operators(self) -> list[Any]:
        """The operator's pods."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component=operator"
        found: list[Any] = self._cluster.core.list_namespaced_pod(self.namespace, label_selector=selector).items
        return found

    def operator(self) -> Any:
        """The one pod of the operator, which is ready."""
        (pod,) = self.operators()
        ready = [each.status for each in pod.status.conditions or [] if each.type == "Ready"]
        assert ready == ["True"], self._cluster.story(self.namespace)
        return pod

    def metrics(self) -> str:
        """What a scrape of the Service finds."""
        path = f"/api/v1/namespaces/{self.namespace}/services/{self.name}-metrics:metrics/proxy/metrics"

        def scraped() -> str:
            try:
                return str(self._api.get(path))
            except client.ApiException as error:
                if error.status != 503:
                    raise
                return ""  # a pod that just became ready is not behind the Service yet

        return eventually(scraped, "the operator's metrics behind its Service")

    def own_crd(self) -> None:
        """Write the CRD as an installation of this release does where there is none yet: Helm takes over nothing that
        somebody else has written, and the CRD is there for every other test."""
        version = client.VersionApi(self._cluster.connection).get_code().git_version
        definition = only(objects({}, kube_version=version), "CustomResourceDefinition")
        definition["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm"}
        definition["metadata"]["annotations"] |= {
            "meta.helm.sh/release-name": self.name,
            "meta.helm.sh/release-namespace": self.namespace,
        }
        self._api.apply(definition)

    def close(self) -> None:
        self.uninstall()
        self.helm.close()

    def _values(self, own: dict[str, Any]) -> dict[str, Any]:
        given = {"image": _image(self._images["operator"]), "runnerImage": _image(self._images["runner"])}
        return {**given, **own}


_WAITING: dict[str, Any] = {"wait": "watcher", "timeout": _SECONDS}


def _image(name: str) -> dict[str, str]:
    repository, _, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag}


def version_of(chart: Path) -> str:
    with helm_python.Chart.load(chart) as loaded:
        return loaded.version
