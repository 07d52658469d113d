"""devcluster's provisioner: a directory and a volume for each claim of its class, until the claim is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from devcluster import volumes
from devcluster.api import ApiError, Client


class Api:
    """An API server that keeps claims and volumes."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.volumes: dict[str, Any] = {}
        self.classes: list[str] = []
        self.refused: set[str] = set()

    def claim(self, uid: str, storage_class: str = volumes.STORAGE_CLASS) -> None:
        self.claims[uid] = {
            "metadata": {"namespace": "lab", "name": f"claim-{uid}", "uid": uid},
            "spec": {
                "storageClassName": storage_class,
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "50Gi"}},
            },
        }

    def request(self, method: str, path: str, body: Any = None) -> Any:
        kind, _, name = path.removeprefix("/api/v1/").partition("/")
        if method == "POST" and path.endswith("/storageclasses"):
            if body["metadata"]["name"] in self.classes:
                raise ApiError(409, "already exists")
            self.classes.append(body["metadata"]["name"])
        elif (name or (body or {}).get("metadata", {}).get("name")) in self.refused:
            raise ApiError(422, f"{method} is invalid")
        elif method == "POST":
            self.volumes[body["metadata"]["name"]] = body
        elif method == "DELETE":
            del self.volumes[name]
        else:
            return {"items": list((self.claims if kind == "persistentvolumeclaims" else self.volumes).values())}
        return None


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(volumes, "VOLUMES", tmp_path / "volumes")
    return Api()


def provision(api: Api) -> None:
    volumes.provision(cast("Client", api))


def test_every_claim_gets_a_volume_of_the_size_it_asks_for(api: Api, tmp_path: Path) -> None:
    for number in range(30):
        api.claim(f"u{number}")
    provision(api)
    assert len(api.volumes) == 30
    spec = api.volumes["pvc-u7"]["spec"]
    assert (spec["capacity"], spec["accessModes"]) == ({"storage": "50Gi"}, ["ReadWriteMany"])
    assert {spec["claimRef"][key] for key in ("namespace", "name", "uid")} == {"lab", "claim-u7", "u7"}
    directory = Path(spec["hostPath"]["path"])
    assert directory == tmp_path / "volumes" / "pvc-u7"
    assert directory.stat().st_mode & 0o777 == 0o777


def test_a_volume_that_is_there_is_left_as_it_is(api: Api, tmp_path: Path) -> None:
    api.claim("u1")
    provision(api)
    before = api.volumes["pvc-u1"]
    (tmp_path / "volumes" / "pvc-u1" / "checkpoint").touch()
    provision(api)
    assert api.volumes["pvc-u1"] is before
    assert (tmp_path / "volumes" / "pvc-u1" / "checkpoint").exists()


def test_a_volume_goes_with_its_claim_and_only_then(api: Api, tmp_path: Path) -> None:
    api.claim("u1")
    api.claim("u2")
    provision(api)
    (tmp_path / "volumes" / "pvc-u1" / "checkpoint").touch()
    del api.claims["u1"]
    provision(api)
    assert list(api.volumes) == ["pvc-u2"]
    assert [each.name for each in (tmp_path / "volumes").iterdir()] == ["pvc-u2"]


def test_a_volume_whose_directory_has_gone_already_is_removed(api: Api, tmp_path: Path) -> None:
    api.claim("u1")
    provision(api)
    (tmp_path / "volumes" / "pvc-u1").rmdir()
    api.claims.clear()
    provision(api)
    assert api.volumes == {}


def test_claims_and_volumes_of_other_classes_are_left_alone(api: Api, tmp_path: Path) -> None:
    api.claim("u1", storage_class="")
    api.volumes["own"] = {"metadata": {"name": "own"}, "spec": {"hostPath": {"path": "/own"}}}
    provision(api)
    assert list(api.volumes) == ["own"]
    assert not (tmp_path / "volumes").exists()


def test_a_claim_that_fails_blocks_no_other(api: Api, tmp_path: Path) -> None:
    for number in range(10):
        api.claim(f"u{number}")
    api.refused = {"pvc-u3"}
    (tmp_path / "volumes").mkdir()
    (tmp_path / "volumes" / "pvc-u5").touch()  # no directory can be made there
    with pytest.raises(OSError, match=r"pvc-u[35]: .*; pvc-u[35]: ") as failed:
        provision(api)
    assert "pvc-u3: 422: POST is invalid" in str(failed.value)
    assert api.volumes.keys() == {f"pvc-u{number}" for number in (0, 1, 2, 4, 6, 7, 8, 9)}


def test_a_volume_that_cannot_be_removed_blocks_no_other(api: Api) -> None:
    for number in range(10):
        api.claim(f"u{number}")
    provision(api)
    api.claims.clear()
    api.refused = {"pvc-u3"}
    with pytest.raises(OSError, match=r"^pvc-u3: 422: DELETE is invalid$"):
        provision(api)
    assert list(api.volumes) == ["pvc-u3"]


def test_the_class_is_made_once(api: Api) -> None:
    for _ in range(2):
        volumes.make_class(cast("Client", api))
    assert api.classes == [volumes.STORAGE_CLASS]
