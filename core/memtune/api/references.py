"""Expands ``$(NAME)`` references as Kubernetes does in a container's command, arguments and values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# Two dollar signs stand for one, and begin no reference.
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """The name of each reference, and the text that follows it."""
    for found in _REFERENCE.finditer(text):
        if found[1] is not None:
            yield found[1], text[found.end() :]


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """Expand ``$(NAME)`` as the kubelet does: an unknown name stays as it is, ``$$`` becomes one dollar sign."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def escape(text: str) -> str:
    """Escape the text so that ``substitute`` returns it unchanged."""
    return text.replace("$", "$$")
