"""The documentation site: it builds without warnings, and its pages load nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]
# What a browser fetches by itself; a link to follow may lead anywhere.
_LOADED = re.compile(r"<(?:script|img|link|iframe)[^>]+(?:src|href)=[\"']?(?:https?:)?//[^\s\"'>]+")


def build(target: Path, config: Path = _ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--config-file={config}", f"--site-dir={target}"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = build(target)
    assert done.returncode == 0, done.stderr
    return target


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {page.relative_to(_ROOT / "docs").with_suffix("") for page in (_ROOT / "docs").rglob("*.md")}
    missing = [page for page in pages if page.name != "README" and not (site / page / "index.html").is_file()]
    assert missing == []
    loaded = {(page.name, found) for page in site.rglob("*.html") for found in _LOADED.findall(page.read_text())}
    assert loaded == set()


def test_links_outside_of_docs_lead_to_pages(site: Path) -> None:
    page = (site / "repository" / "examples" / "hf-trainer.yaml" / "index.html").read_text()
    assert "<h1" in page
    assert "MemoryTunedJob" in page
    # From docs/ to the examples and back.
    assert 'href="../repository/examples/env.yaml/"' in (site / "integrations" / "index.html").read_text()
    back = (site / "repository" / "examples" / "index.html").read_text()
    assert 'href="../../integrations/"' in back
