"""A release: its tag matches every version, and its chart names the registry's images."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import fast_yaml
import helm_python
import pytest

from tools import release

_CHART = "name: memtune\nversion: 7.0.0\nappVersion: 1.2.0\n"
_CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2027-01-01\n\n## [1.1.0] - 2026-12-01\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout in which everything has version 1.2.0."""
    (tmp_path / "charts" / "memtune").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "charts" / "memtune" / "Chart.yaml").write_text(_CHART)
    (tmp_path / "CHANGELOG.md").write_text(_CHANGELOG.replace("] - 2027-01-01", "]"))
    return tmp_path


def test_a_tag_names_the_version_that_all_have(root: Path) -> None:
    assert release.version("v1.2.0", root) == "1.2.0"


def test_the_newest_release_of_the_changelog_may_have_a_date(root: Path) -> None:
    (root / "CHANGELOG.md").write_text(_CHANGELOG)
    assert release.version("v1.2.0", root) == "1.2.0"


def test_versions_that_disagree_with_the_tag_are_named(root: Path) -> None:
    (root / "charts" / "memtune" / "Chart.yaml").write_text(_CHART.replace("1.2.0", "1.1.0"))
    (root / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
    with pytest.raises(release.ReleaseError) as refused:
        release.version("v1.2.0", root)
    assert str(refused.value) == (
        "the tag is v1.2.0; appVersion in charts/memtune/Chart.yaml is 1.1.0; "
        "the newest release in CHANGELOG.md is not there: a release X.Y.Z is tagged vX.Y.Z everywhere"
    )
    with pytest.raises(release.ReleaseError, match=r"the tag is 1\.1\.0;"):
        release.version("1.1.0", root)


def test_a_tag_needs_its_v(root: Path) -> None:
    with pytest.raises(release.ReleaseError, match=r"^the tag is 1\.2\.0: a release X\.Y\.Z is tagged vX\.Y\.Z"):
        release.version("1.2.0", root)


def test_the_packaged_chart_names_the_images_of_the_registry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(["chart", "registry.example/owner/", str(tmp_path)]) == 0
    package = Path(capsys.readouterr().out.strip())
    values = fast_yaml.load(helm_python.show(str(package), output_format="values"))
    assert [values[image]["repository"] for image in ("image", "runnerImage")] == [
        "registry.example/owner/memtune-operator",
        "registry.example/owner/memtune-runner",
    ]
    shipped = fast_yaml.load((release.CHART / "Chart.yaml").read_text())
    assert package.name == f"memtune-{shipped['version']}.tgz"


def test_a_chart_without_a_registry_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["chart", "", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("release: no registry is named: `make chart REGISTRY=HOST/OWNER`")


@pytest.mark.parametrize("way", ["argument", "environment"])
@pytest.mark.parametrize("tag", ['v1";echo INJECTED;echo "', "v1$(shell touch {})", "v1$$(touch {})", "v1`touch {}`"])
def test_make_executes_nothing_of_a_tags_name(tag: str, way: str, tmp_path: Path) -> None:
    tag = tag.format(tmp_path / "injected")
    command = ["make", "--silent", "release-version", *([f"TAG={tag}"] if way == "argument" else [])]
    environment = {**os.environ, **({"TAG": tag} if way == "environment" else {})}
    done = subprocess.run(command, cwd=release.ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"release: the tag is {tag}; " in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "injected").exists()
