"""Texts that break what reads them carelessly."""

from __future__ import annotations

from hypothesis import strategies as st

# Written out: of all characters hypothesis makes a table at first, which takes longer than most files of tests.
_CHARACTERS = "az09-_.:/=\"'\\{}[],$ \t\n\x00\x1b\x7f\ud800\u00e9\u0664\u2028\ufffd\N{PILE OF POO}"


def texts(max_size: int) -> st.SearchStrategy[str]:
    """Quotes, brackets, control characters, half a surrogate pair, what is a digit only elsewhere."""
    return st.text(_CHARACTERS, max_size=max_size)
