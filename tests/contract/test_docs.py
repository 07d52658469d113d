"""The pages under docs/ point at what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = [*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md"), *_ROOT.glob("charts/**/*.md"), *_ROOT.glob("bench/**/*.md")]
_LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def _anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings; a block of code has none."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{target} is not there"
        assert not anchor or anchor in _anchors(there), f"{target}#{anchor}: no such heading"
