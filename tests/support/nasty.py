"""Strings that break careless readers."""

from __future__ import annotations

from hypothesis import strategies as st

# A fixed list: hypothesis builds a table for all characters first, which takes longer than most test files.
_CHARACTERS = "az09-_.:/=\"'\\{}[],$ \t\n\x00\x1b\x7f\ud800\u00e9\u0664\u2028\ufffd\N{PILE OF POO}"


def texts(max_size: int) -> st.SearchStrategy[str]:
    """Quotes, brackets, control characters, half a surrogate pair, a digit that is not ASCII."""
    return st.text(_CHARACTERS, max_size=max_size)
