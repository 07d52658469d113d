"""Texts that break careless parsers."""

from __future__ import annotations

from hypothesis import strategies as st

# Listed explicitly: for all characters hypothesis first makes a table, which takes longer than most test files.
_CHARACTERS = "az09-_.:/=\"'\\{}[],$ \t\n\x00\x1b\x7f\ud800\u00e9\u0664\u2028\ufffd\N{PILE OF POO}"


def texts(max_size: int) -> st.SearchStrategy[str]:
    """Quotes, brackets, control characters, half a surrogate pair, and non-ASCII digits."""
    return st.text(_CHARACTERS, max_size=max_size)
