"""The models and data of all programs, made once."""

from __future__ import annotations

import pytest
from script_models_and_data import Material, make_material
from script_runs import PACKAGES


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """Where the programs find their models and data."""
    if not PACKAGES.is_dir():
        pytest.fail(f"{PACKAGES} is not there: `make env` makes it")
    return make_material(tmp_path_factory.mktemp("material"))
