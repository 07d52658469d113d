"""References to variables, ``$(NAME)``, as Kubernetes expands them in a container's command, arguments and values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# Two dollar signs are one, and begin no reference.
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """The name of each reference, and the text that follows it."""
    for found in _REFERENCE.finditer(text):
        if found[1] is not None:
            yield found[1], text[found.end() :]


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """Fill in ``$(NAME)`` as the kubelet does: an unknown name stays as it is, ``$$`` is one dollar sign."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[1] is None else variables.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def escape(text: str) -> str:
    """The text so that it comes out of ``substitute`` as it is, with nothing in it taken for a reference."""
    return text.replace("$", "$$")
