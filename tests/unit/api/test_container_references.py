"""References to variables expand as in the kubelet; escaped ones do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtune.api.container import escape, names_in, substitute

VARIABLES = {"A": "1", "MEMTUNE_PLAN": "P"}
PIECES = st.sampled_from(["$", "$$", "$(", ")", "(", "$(A)", "$(MEMTUNE_PLAN)", "$$(A)", "A", "b", " ", "\n"])


@given(st.lists(PIECES).map("".join) | st.text())
def test_escaped_references_reach_the_container_unchanged(text: str) -> None:
    assert substitute(escape(text), VARIABLES) == text
    assert list(names_in(escape(text))) == []


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)/$(MEMTUNE_PLAN)", "1/P"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("a$$b", "a$b"),
        ("$(UNKNOWN) $A $", "$(UNKNOWN) $A $"),
    ],
)
def test_references_are_expanded_as_the_kubelet_does(text: str, expanded: str) -> None:
    assert substitute(text, VARIABLES) == expanded
