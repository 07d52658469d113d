"""Requests to the API server as plain values, for what the client's models do not know."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kubernetes import client

# Helm's library signs what it writes with the name of the program that it is in.
_HELM = Path(sys.orig_argv[0]).name
APPLY = "application/apply-patch+yaml"


class RawApi:
    """The API server of one connection."""

    def __init__(self, connection: client.ApiClient) -> None:
        self._connection: Any = connection

    def get(self, path: str) -> Any:
        """What is there: parsed if it is JSON, else its text."""
        return self._call("GET", path)

    def create(self, path: str, body: dict[str, Any]) -> Any:
        """The object as it was made."""
        return self._call("POST", path, body)

    def delete(self, path: str) -> None:
        self._call("DELETE", path)

    def apply(self, manifest: dict[str, Any], dry_run: bool = False) -> Any:
        """The object as a server-side apply leaves it, or would; it is how Helm writes, and in Helm's name."""
        dry = "&dryRun=All" if dry_run else ""
        return self._call("PATCH", f"{_path(manifest)}?fieldManager={_HELM}&force=true{dry}", manifest, APPLY)

    def _call(self, verb: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        headers = {"Accept": "application/json", "Content-Type": content}
        request = self._connection.param_serialize(
            verb, path, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        response = self._connection.call_api(*request)
        text = response.read().decode()
        if not 200 <= response.status <= 299:
            raise client.ApiException(status=response.status, reason=f"{verb} {path}: {text}")
        return json.loads(text) if text.startswith("{") else text


def _path(manifest: dict[str, Any]) -> str:
    version, metadata = manifest["apiVersion"], manifest["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{scope}/{_plural(manifest['kind'])}/{metadata['name']}"


def _plural(kind: str) -> str:
    """As Kubernetes forms it for its own kinds."""
    return f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
