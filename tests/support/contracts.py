"""CRDs of other projects, from a directory beside the checkout."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from helm_chart import ROOT


def contract(file: str) -> dict[str, Any]:
    """Return the CRD in a file of `shared/contracts`; skip the test if there is no such directory."""
    for directory in ROOT.parents:
        path = directory / "shared" / "contracts" / file
        if path.is_file():
            found: dict[str, Any] = yaml.safe_load(path.read_text())
            return found
    pytest.skip(f"no contracts/{file} in a directory `shared` beside the checkout: other projects' CRDs are there")


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a CRD's first version."""
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema
