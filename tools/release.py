"""Release tasks beside the images: `version TAG` checks a tag, `chart REGISTRY DIRECTORY` packages the chart."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "memtune"
_IMAGES = ("memtune-operator", "memtune-runner")


class ReleaseError(Exception):
    """An error that says what is wrong, where, and what to do."""


def version(tag: str, root: Path = ROOT) -> str:
    """The version of a tag; raise ReleaseError unless it matches the version in every file."""
    expected = tag.removeprefix("v")
    found = {
        "version in pyproject.toml": _line(root / "pyproject.toml", 'version = "(.+)"'),
        "appVersion in charts/memtune/Chart.yaml": _line(
            root / "charts" / "memtune" / "Chart.yaml", "appVersion: (.+)"
        ),
        "the newest release in CHANGELOG.md": _line(root / "CHANGELOG.md", r"## \[(\d[^]]*)\].*"),
    }
    wrong = [f"{where} is {value}" for where, value in found.items() if value != expected]
    if tag == expected or wrong:
        raise ReleaseError("; ".join([f"the tag is {tag}", *wrong]) + ": a release X.Y.Z is tagged vX.Y.Z everywhere")
    return expected


def package_chart(registry: str, directory: Path) -> Path:
    """Package the chart with the registry's images as defaults."""
    # A local import: `version` runs before the development environment exists.
    import helm_python

    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(shutil.copytree(CHART, Path(temporary) / "memtune"))
        values = (copy / "values.yaml").read_text()
        for image in _IMAGES:
            values, count = re.subn(rf"(?m)^  repository: {image}$", f"  repository: {registry}/{image}", values)
            if count != 1:
                raise ReleaseError(f"charts/memtune/values.yaml has no line `repository: {image}`")
        (copy / "values.yaml").write_text(values)
        return Path(helm_python.package(copy, destination=directory))


def _line(file: Path, pattern: str) -> str:
    found = re.search(f"(?m)^{pattern}$", file.read_text())
    return found[1] if found else "not there"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/release.py", description="what a release needs beside the images")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("version", help="check a tag, and print `version=` and what it names").add_argument("tag")
    chart = commands.add_parser("chart", help="package the chart for the images of a registry")
    chart.add_argument("registry", help="host and path, without a slash at its end")
    chart.add_argument("directory", type=Path)
    given = parser.parse_args(words)
    try:
        if given.command == "version":
            print(f"version={version(given.tag)}")
        elif not given.registry:
            raise ReleaseError("no registry is named: `make chart REGISTRY=HOST/OWNER`; a workflow takes vars.REGISTRY")
        else:
            print(package_chart(given.registry.rstrip("/"), given.directory))
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
