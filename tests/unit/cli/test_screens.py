"""Pages on different screens: colours, widths, encodings."""

from __future__ import annotations

import io
import sys

import pytest
from cli_jobs import DENSE
from terminals import Terminal

from memtune_cli.main import main
from memtune_cli.views.screen import Screen


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert Screen.of(Terminal()).colours
    assert not Screen.of(io.TextIOWrapper(io.BytesIO(), "utf-8")).colours
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Screen.of(Terminal()).colours


def test_a_terminal_gets_colours_in_lines_as_long_as_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["plan", DENSE])
    plain = capsys.readouterr().out
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    main(["plan", DENSE])
    assert "\x1b[1m" in terminal.getvalue()
    assert plain.splitlines()[0] in terminal.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_an_old_encoding_gets_plain_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    for command in (["plan", DENSE], ["explain", DENSE], ["estimate", DENSE, "--plan", "bf16-z3-full-mb1x32"]):
        assert main(command) == 0


@pytest.mark.parametrize("width", [60, 80, 140])
def test_pages_fit_the_screen(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for command in (["plan"], ["explain"], ["estimate", "--plan", "bf16-z3-full-mb1x32"]):
        main([*command, DENSE])
        assert max(map(len, capsys.readouterr().out.splitlines())) <= width
