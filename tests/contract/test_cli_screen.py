"""What the `memtune` command writes to: terminals, pipes, full disks; and what it imports for that."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from cli_jobs import DENSE, ROOT

from memtune_cli.main import main
from memtune_cli.screen import Screen


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


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


def _run(code: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / package) for package in ("core", "cli"))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_plan_imports_no_heavy_library() -> None:
    heavy = ("torch", "kopf", "kubernetes", "optuna", "deepspeed", "matplotlib", "numpy", "rich")
    code = (
        "import sys; from memtune_cli.main import main\n"
        f"main(['plan', {DENSE!r}])\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    ended = _run(code)
    assert ended.stdout.splitlines()[-1] == "[]", ended.stderr


def test_the_parser_alone_imports_neither_pydantic_nor_yaml() -> None:
    code = (
        "import sys; from memtune_cli.main import build_parser; build_parser()\n"
        "print([name for name in ('pydantic', 'yaml', 'memtune.predict') if name in sys.modules])"
    )
    assert _run(code).stdout.strip() == "[]"


def test_a_full_disk_is_told_and_a_closed_output_is_no_error() -> None:
    started = "import os, sys; from memtune_cli.main import main\n"
    full = _run(f"{started}os.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nsys.exit(main(['plan', {DENSE!r}]))")
    assert (full.returncode, full.stderr) == (
        2,
        "memtune: standard output cannot be written: No space left on device\n",
    )
    closed = _run(f"{started}sys.stdout = None\nsys.exit(main(['plan', {DENSE!r}]))")
    assert (closed.returncode, closed.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import os, sys; from memtune_cli.main import main\n"
        "reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 1)\n"
        f"sys.exit(main(['plan', {DENSE!r}]))"
    )
    ended = _run(code)
    assert (ended.returncode, ended.stderr) == (0, "")
