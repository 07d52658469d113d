"""What an account may do: as the API server answers for every verb of every resource that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kubernetes import client
from raw_api import RawApi

# No resource lists these among its verbs, and each of them leads to the rights of others.
_HIDDEN = (
    ("", "users", "impersonate"),
    ("", "groups", "impersonate"),
    ("", "serviceaccounts", "impersonate"),
    ("rbac.authorization.k8s.io", "roles", "bind"),
    ("rbac.authorization.k8s.io", "roles", "escalate"),
    ("rbac.authorization.k8s.io", "clusterroles", "bind"),
    ("rbac.authorization.k8s.io", "clusterroles", "escalate"),
    ("policy", "podsecuritypolicies", "use"),
    ("certificates.k8s.io", "signers", "approve"),
    ("certificates.k8s.io", "signers", "sign"),
)


class Right(NamedTuple):
    """One verb on one resource, which may be a part like `pods/log`."""

    group: str
    resource: str
    verb: str


class Rights:
    """The answers for one ServiceAccount."""

    def __init__(self, connection: client.ApiClient, namespace: str, account: str) -> None:
        self._api = RawApi(connection)
        self._user = f"system:serviceaccount:{namespace}:{account}"
        self._groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]

    def known(self) -> set[Right]:
        """Every verb of every resource that the server has, and the verbs that it does not list."""
        return {*self._discovered(), *(Right(*each) for each in _HIDDEN)}

    def granted(self, namespace: str, among: set[Right], name: str = "") -> set[Right]:
        """Those that it has in this namespace, or over all of them if it is empty; on all objects, or on one."""
        return {right for right in among if self._has(right, namespace, name)}

    def _discovered(self) -> Iterator[Right]:
        groups = self._api.get("/apis")["groups"]
        versions = [("", "/api/v1")]
        versions += [
            (each["name"], f"/apis/{version['groupVersion']}") for each in groups for version in each["versions"]
        ]
        for group, path in versions:
            for resource in self._api.get(path)["resources"]:
                yield from (Right(group, resource["name"], verb) for verb in resource["verbs"])

    def _has(self, right: Right, namespace: str, name: str) -> bool:
        resource, _, part = right.resource.partition("/")
        asked = {"group": right.group, "resource": resource, "subresource": part, "verb": right.verb}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": self._user,
                "groups": self._groups,
                "resourceAttributes": {**asked, "namespace": namespace, "name": name},
            },
        }
        answer = self._api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])
