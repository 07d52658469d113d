"""Volumes for claims that name no storage class: directories of the machine that every node sees and anybody may write.

There is no provisioner. `up` makes them, and offers those anew, empty, whose claims have gone.
"""

from __future__ import annotations

import shutil

from devcluster.api import ApiError, client
from devcluster.layout import VOLUMES

_COUNT = 4
_PATH = "/api/v1/persistentvolumes"


def make_volumes() -> None:
    for number in range(1, _COUNT + 1):
        name = f"volume-{number}"
        phase = _phase(name)
        if phase == "Released":
            _empty(name)
            release = [{"op": "remove", "path": "/spec/claimRef"}]
            client().request("PATCH", f"{_PATH}/{name}", release, "application/json-patch+json")
        elif phase is None:
            _empty(name)
            client().request("POST", _PATH, _volume(name))


def _phase(name: str) -> str | None:
    try:
        phase: str = client().request("GET", f"{_PATH}/{name}")["status"]["phase"]
    except ApiError as error:
        if error.code != 404:
            raise
        return None
    return phase


def _empty(name: str) -> None:
    directory = VOLUMES / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    # Pods run as nobody in particular, and kubelet gives a hostPath to nobody.
    directory.chmod(0o777)


def _volume(name: str) -> dict[str, object]:
    return {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(VOLUMES / name), "type": "Directory"},
        },
    }
