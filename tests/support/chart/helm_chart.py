"""Renders the chart with Helm's own library, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import fast_yaml
import helm_python
import yaml
from helm_python import _native

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "memtune"
RELEASE = "rel"
NAMESPACE = "memtune-system"
FULL_NAME = "rel-memtune"
Manifest = dict[str, Any]


def render(
    values: Manifest,
    api_versions: Sequence[str] = (),
    kube_version: str = "",
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> dict[str, str]:
    """The text of each template by its path. ``api_versions`` are additional kinds that the cluster has."""
    options: Manifest = {"name": release, "namespace": namespace, "api_versions": list(api_versions)}
    options |= {"kube_version": kube_version} if kube_version else {}
    with helm_python.Chart.load(CHART) as chart:
        # Chart.render cannot pass the cluster's API versions to Helm; the native function beneath it can.
        rendered = _native.call_string("helm_render", chart._raw(), json.dumps(values), json.dumps(options))
    texts: dict[str, str] = json.loads(rendered)
    return {path.removeprefix("memtune/templates/"): text for path, text in texts.items()}


def objects(
    values: Manifest,
    api_versions: Sequence[str] = (),
    kube_version: str = "",
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> list[Manifest]:
    """Every object of an installation with these values, including those of `helm test`."""
    texts = render(values, api_versions, kube_version, release, namespace)
    return [each for path, text in texts.items() if path.endswith(".yaml") for each in json.loads(_as_json(text))]


@cache
def _as_json(text: str) -> str:
    """Cached: most templates render alike for many sets of values."""
    return json.dumps([document for document in yaml.load_all(text, _Loader) if document])


class _Loader(fast_yaml.Loader):  # type: ignore[misc]  # either of two
    """Rejects duplicate keys, as Helm does when it installs."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key twice in {keys}"
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    """Manifests of one kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def only(manifests: Sequence[Manifest], kind: str) -> Manifest:
    """The only manifest of this kind."""
    (found,) = of_kind(manifests, kind)
    return found


def pod_specs(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """The pod spec of every workload, by the name of its object."""
    held = {manifest["metadata"]["name"]: manifest["spec"] for manifest in of_kind(manifests, "Pod")}
    for manifest in of_kind(manifests, "Deployment"):
        held[manifest["metadata"]["name"]] = manifest["spec"]["template"]["spec"]
    return held
