"""Kinds of other projects in the cluster, for as long as a test needs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crd_schemas import contract
from kubernetes import client
from operator_process import until_served
from pods import Cluster, eventually

MONITORING_CRDS = tuple(
    f"monitoring.coreos.com_{plural}.yaml" for plural in ("podmonitors", "prometheusrules", "servicemonitors")
)
GANG_CRDS = (
    "scheduling.volcano.sh_podgroups.yaml",
    "scheduling.x-k8s.io_podgroups.yaml",
    "jobset.x-k8s.io_jobsets.yaml",
)


@contextmanager
def installed(cluster: Cluster, *files: str) -> Iterator[None]:
    """The CRDs in these files of `shared/contracts`. Those that were there already stay."""
    api: Any = client.ApiextensionsV1Api(cluster.connection)
    made: list[str] = []
    try:
        for file in files:
            made += _create(api, contract(file))
        yield
    finally:
        for name in made:
            api.delete_custom_resource_definition(name)
        # The next test would take one that is still going for one that is there.
        eventually(lambda: not _named(api).intersection(made), "CRDs that were deleted to go")


def _named(api: Any) -> set[str]:
    return {each.metadata.name for each in api.list_custom_resource_definition().items}


# How lists are merged, which asks for defaults of what they are merged by, and no test here merges any.
_MERGING = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys")


def _known_here(node: dict[str, Any]) -> dict[str, Any]:
    """A server that was built with a newer Go than it was made for, like the dev cluster's, reads "" as null."""
    return {key: each for key, each in node.items() if key not in _MERGING and (key, each) != ("default", "")}


def _create(api: Any, crd: dict[str, Any]) -> list[str]:
    """The name of the CRD, unless it was there before."""
    name: str = crd["metadata"]["name"]
    try:
        api.create_custom_resource_definition(json.loads(json.dumps(crd), object_hook=_known_here))
    except client.ApiException as error:
        if error.status != 409:
            raise
        return []
    until_served(api, name)
    return [name]
