"""Which lines stay on a terminal and which are redrawn; a file gets only the former."""

from __future__ import annotations

import io
import re

import pytest
from terminals import Terminal

from memtune_cli.views.display import Display

CLOCK = re.compile(r"\d\d:\d\d:\d\d")


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "6")


def written(stream: io.StringIO) -> str:
    return CLOCK.sub("NOW", stream.getvalue())


def test_a_printed_line_goes_above_the_page() -> None:
    display = Display(stream := Terminal())
    display.show(["one", "two"])
    display.tell("it began")
    display.end(["done"])
    page = "\x1b[?7lone\ntwo\n\x1b[?7h"
    assert written(stream) == f"{page}\x1b[2A\r\x1b[JNOW  it began\n{page}\x1b[2A\r\x1b[Jdone\n"


def test_a_page_is_no_longer_than_the_terminal() -> None:
    display = Display(stream := Terminal())
    display.show([str(number) for number in range(20)])
    assert written(stream) == "\x1b[?7l0\n1\n2\n3\n4\n\x1b[?7h"


@pytest.mark.parametrize("terminal", ["dumb", ""])
def test_a_terminal_without_cursor_control_gets_lines(terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", terminal)
    display = Display(stream := Terminal())
    display.show(["one"])
    display.tell("it began")
    assert written(stream) == "NOW  it began\n"


def test_a_file_gets_the_printed_lines_alone() -> None:
    display = Display(stream := io.StringIO())
    display.show(["one"])
    display.tell("it began")
    display.end(["done"])
    assert written(stream) == "NOW  it began\ndone\n"
