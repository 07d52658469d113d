"""Terminal capabilities: width, colours and block characters."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import TextIO

_WIDEST = 140
_NARROWEST = 48


@dataclass(frozen=True)
class Screen:
    """The capabilities of one stream."""

    width: int
    colours: bool
    unicode: bool

    @classmethod
    def of(cls, stream: TextIO) -> Screen:
        """Detect them; colours only on a terminal and unless disabled (https://no-color.org)."""
        terminal = stream.isatty()
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size((100, 40)).columns
        return cls(
            width=max(_NARROWEST, min(width, _WIDEST)),
            colours=terminal and wanted,
            unicode=(stream.encoding or "").lower().replace("-", "") in ("utf8", "utf16"),
        )

    def paint(self, text: str, code: str) -> str:
        """The text in an ANSI style, if colours are on."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours and code else text

    def bold(self, text: str) -> str:
        """Bold text."""
        return self.paint(text, "1")

    def dim(self, text: str) -> str:
        """Dimmed text."""
        return self.paint(text, "2")

    def plain(self, text: str) -> str:
        """The text with characters that the stream cannot encode replaced."""
        return text if self.unicode else text.translate(_ASCII)


_ASCII = str.maketrans({"–": "-", "×": "x", "≈": "~", "─": "-", "·": ".", "…": ">"})


def stdout_screen() -> Screen:
    """The screen of standard output."""
    return Screen.of(sys.stdout)
