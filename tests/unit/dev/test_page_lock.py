"""The dashboards' npm lock: every package pinned by version and hash, none bound to a registry."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[3] / "dev" / "cluster" / "monitoring" / "page_sources"
PACKAGE: dict[str, Any] = json.loads((SOURCES / "package.json").read_text())
LOCKED: dict[str, dict[str, Any]] = json.loads((SOURCES / "package-lock.json").read_text())["packages"]


def test_requested_packages_have_one_locked_version_each() -> None:
    asked = {**PACKAGE["dependencies"], **PACKAGE["devDependencies"]}
    assert {name: LOCKED[f"node_modules/{name}"]["version"] for name in asked} == asked


def test_every_package_has_a_hash_and_no_address() -> None:
    packages = {path: package for path, package in LOCKED.items() if path}
    assert [path for path, package in packages.items() if not package.get("integrity", "").startswith("sha512-")] == []
    assert [path for path, package in packages.items() if "resolved" in package] == []


def test_grafanas_packages_are_of_one_release() -> None:
    versions = {
        package["version"] for path, package in LOCKED.items() if re.search(r"@grafana/(data|schema|ui)$", path)
    }
    assert versions == {PACKAGE["dependencies"]["@grafana/ui"]}


def test_optional_packages_are_locked_too() -> None:
    """`npm ci` rejects a lock without it. A new release may lack packages for most platforms for some days."""
    missing = [
        name
        for package in LOCKED.values()
        for name in package.get("optionalDependencies", {})
        if not any(path.endswith(f"node_modules/{name}") for path in LOCKED)
    ]
    assert missing == []
