"""The base image: nothing of a build that was killed stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from devcluster import images


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(images, "CACHE", tmp_path)
    monkeypatch.setattr(images, "_WORK", tmp_path / "base-build")
    monkeypatch.setattr(images, "check_disk", lambda *_: None)
    monkeypatch.setattr(images, "debian_sources", lambda _, to: to.touch())
    return tmp_path


def test_all_that_a_killed_build_leaves_goes_with_the_next(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(argv: list[str], _: Path, *, env: Mapping[str, str]) -> None:
        # Where mmdebstrap unpacks.
        assert Path(env["TMPDIR"]) == cache / "base-build"
        Path(argv[-2]).write_text("half a layer")
        raise KeyboardInterrupt

    def builds(argv: list[str], _: Path, *, env: Mapping[str, str]) -> None:
        assert not (Path(env["TMPDIR"]) / "mmdebstrap.xyz").exists()
        Path(argv[-2]).write_text("layer")

    left = cache / "base-build" / "mmdebstrap.xyz"
    left.mkdir(parents=True)
    monkeypatch.setattr(images, "run_logged", builds)
    archive = images.base_archive()
    assert list(cache.iterdir()) == [archive]
    archive.unlink()
    monkeypatch.setattr(images, "run_logged", killed)
    with pytest.raises(KeyboardInterrupt):
        images.base_archive()
    assert list(cache.iterdir()) == []


def test_down_and_up_remove_it_too(cache: Path) -> None:
    (cache / "base-build" / "mmdebstrap.xyz").mkdir(parents=True)
    images.remove_unfinished()
    assert list(cache.iterdir()) == []
