"""The volume provisioner: each claim of the default storage class gets a directory of this machine.

Every node sees it at the same path, and any user may write to it. It is removed with its claim.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from typing import Any

from dev.cluster.api import ApiError, Client, client, keep_doing
from dev.cluster.layout import LOGS, VOLUMES
from dev.cluster.supervisor import Part

STORAGE_CLASS = "directory"
_PROVISIONER = "memtune.dev/devcluster"
_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
_CLAIMS = "/api/v1/persistentvolumeclaims"
_VOLUMES = "/api/v1/persistentvolumes"


def volumes() -> Part:
    argv = [sys.executable, "-m", "dev.cluster.volumes"]
    return Part("volumes", argv, LOGS / "volumes.log", ready=_has_class)


def _has_class() -> bool:
    try:
        client().request("GET", f"{_CLASSES}/{STORAGE_CLASS}")
    except (OSError, ApiError):
        return False
    return True


def make_class(api: Client) -> None:
    body = {
        "metadata": {"name": STORAGE_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": _PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }
    try:
        api.request("POST", _CLASSES, body)
    except ApiError as error:
        if error.code != 409:  # exists from before a restart of this part
            raise


def provision(api: Client) -> None:
    """Create a volume for every claim without one, and remove volumes whose claims are gone.

    Claims are listed first, so a listed volume without a claim has outlived it. A claim in use by a pod still exists,
    since Kubernetes keeps it until the pod ends. A failure does not block other claims and is raised at the end.
    """
    claims = {_name(claim): claim for claim in _of_class(api, _CLAIMS)}
    there = {volume["metadata"]["name"] for volume in _of_class(api, _VOLUMES)}
    failures = []
    for name in [*(claims.keys() - there), *(there - claims.keys())]:
        try:
            if name in claims:
                _make(api, name, claims[name])
            else:
                _remove(api, name)
        except (OSError, ApiError) as error:
            failures.append(f"{name}: {error}")
    if failures:
        raise OSError("; ".join(failures))


def _make(api: Client, name: str, claim: dict[str, Any]) -> None:
    directory = VOLUMES / name
    directory.mkdir(parents=True, exist_ok=True)
    # Kubelet does not change owner or mode of a hostPath, and pods run as any user.
    directory.chmod(0o777)
    api.request("POST", _VOLUMES, _volume(name, claim))
    print(f"{name}: made for {claim['metadata']['namespace']}/{claim['metadata']['name']}", flush=True)


def _remove(api: Client, name: str) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(VOLUMES / name)
    try:
        api.request("DELETE", f"{_VOLUMES}/{name}")
        print(f"{name}: removed, its claim is gone", flush=True)
    except ApiError as error:
        if error.code != 404:  # was being deleted when listed
            raise


def _of_class(api: Client, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.request("GET", path)["items"]
    return [each for each in found if each["spec"].get("storageClassName") == STORAGE_CLASS]


def _name(claim: dict[str, Any]) -> str:
    return f"pvc-{claim['metadata']['uid']}"


def _volume(name: str, claim: dict[str, Any]) -> dict[str, Any]:
    metadata, spec = claim["metadata"], claim["spec"]
    return {
        # Without the annotation the controller manager would try to delete the directory, which it only does in /tmp.
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": _PROVISIONER}},
        "spec": {
            "storageClassName": STORAGE_CLASS,
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                **{key: metadata[key] for key in ("namespace", "name", "uid")},
            },
            "hostPath": {"path": str(VOLUMES / name), "type": "Directory"},
        },
    }


def main() -> None:
    api = client()
    make_class(api)
    keep_doing(lambda: provision(api), api, _CLAIMS, _VOLUMES)


if __name__ == "__main__":
    main()
