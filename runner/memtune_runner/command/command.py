"""Parses the user's command line into what each rank runs, without the launcher in front of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from memtune.words import Word
from memtune_runner.command import launchers
from memtune_runner.command.launchers import KnownLauncher

_PYTHON = re.compile(r"python(\d+(\.\d+)?t?)?(\.exe)?")
# Interpreter options that take a value. The others may be combined, as in -Bu.
_WITH_VALUE = "WX"
_ALONE = "bBdEIiOPqRsSuvx"
_LONG_WITH_VALUE = "--check-hash-based-pycs"


class CommandError(ValueError):
    """A command line that names nothing to run. The message says what is missing."""


class Kind(Word):
    """The target of a command: a script, module or code string in a Python worker, or any other program."""

    SCRIPT = "script"
    MODULE = "module"
    CODE = "code"
    PROGRAM = "program"


@dataclass(frozen=True)
class Command:
    """The command of each rank.

    ``interpreter`` is the Python in the command line with its options; it is empty behind a launcher that is a program
    of its own, whose Python is meant. ``launcher`` is the word that named a launcher, or empty. ``local_rank`` is the
    option by which that launcher passes each script its rank.
    """

    kind: Kind
    target: str
    arguments: tuple[str, ...] = ()
    interpreter: tuple[str, ...] = ()
    launcher: str = ""
    local_rank: str = ""
    accelerate_options: tuple[str, ...] = ()


def parse(words: Sequence[str]) -> Command:
    """Parse a command line. Anything but Python or a known launcher is a program and stays as it is."""
    if not words:
        raise CommandError("there is no command after `launch --`; add the one that starts the training")
    name = PurePosixPath(words[0]).name
    if _PYTHON.fullmatch(name):
        return _python(words)
    if _launches(name, words[1:]):
        command = _launched(launchers.PROGRAMS[name], _without_subcommand(name, words[1:]))
        return replace(command, launcher=words[0])
    return Command(Kind.PROGRAM, words[0], tuple(words[1:]))


def _launches(name: str, rest: Sequence[str]) -> bool:
    """Whether the program or module is a launcher, unlike `accelerate config` for example."""
    known = name in launchers.PROGRAMS or name in launchers.MODULES
    return known and (name not in launchers.WITH_SUBCOMMAND or list(rest[:1]) == ["launch"])


def _without_subcommand(name: str, rest: Sequence[str]) -> Sequence[str]:
    return rest[1:] if name in launchers.WITH_SUBCOMMAND else rest


def _python(words: Sequence[str]) -> Command:
    """Parse ``python [options] SCRIPT | -m MODULE | -c CODE``; without a target it is an ordinary program."""
    position = 1
    while position < len(words):
        word = words[position]
        if not word.startswith("-"):
            return _of_python(Kind.SCRIPT, words, position)
        if word.startswith("--"):
            if word != _LONG_WITH_VALUE:
                break
            position += 2
            continue
        letter, attached = _last_option(word)
        if letter in "mc":
            return _introduced(Kind.MODULE if letter == "m" else Kind.CODE, words, position, attached)
        if letter not in _WITH_VALUE + _ALONE:
            break
        position += 2 if letter in _WITH_VALUE and not attached else 1
    return Command(Kind.PROGRAM, words[0], tuple(words[1:]))


def _last_option(word: str) -> tuple[str, str]:
    """Return the option in a word like ``-Bum`` that decides how to read on, and its attached value."""
    for index, letter in enumerate(word[1:], start=1):
        if letter not in _ALONE:
            return letter, word[index + 1 :]
    return word[-1], ""


def _introduced(kind: Kind, words: Sequence[str], position: int, attached: str) -> Command:
    """Parse what follows ``-m`` or ``-c``, in the next word or attached: ``python -mpkg`` is ``python -m pkg``."""
    if attached:
        words = [*words[:position], words[position].removesuffix(attached), attached, *words[position + 1 :]]
    return _of_python(kind, words, position + 1)


def _of_python(kind: Kind, words: Sequence[str], position: int) -> Command:
    """Return the command whose target is at ``position``, after Python's own options."""
    if position >= len(words):
        raise CommandError(f"`{' '.join(words)}` names nothing to run; add the {kind}")
    interpreter = _options(kind, words[:position])
    target, rest = words[position], words[position + 1 :]
    name = PurePosixPath(target).name if kind is Kind.SCRIPT else target
    table = {Kind.SCRIPT: launchers.PROGRAMS, Kind.MODULE: launchers.MODULES}.get(kind, {})
    if name in table and _launches(name, rest):
        command = _launched(table[name], _without_subcommand(name, rest))
        return replace(command, interpreter=() if command.kind is Kind.PROGRAM else interpreter, launcher=target)
    return Command(kind, target, tuple(rest), interpreter)


def _options(kind: Kind, words: Sequence[str]) -> tuple[str, ...]:
    """Return Python and its options, without the ``m`` or ``c`` that introduced the target."""
    if kind is Kind.SCRIPT:
        return tuple(words)
    last = words[-1][:-1]
    return tuple([*words[:-1], last] if last != "-" else words[:-1])


def _launched(launcher: KnownLauncher, words: Sequence[str]) -> Command:
    """Return what a launcher would start in each rank."""
    kind, position, tells_rank = Kind.SCRIPT, 0, bool(launcher.local_rank)
    while position < len(words) and words[position].startswith("-") and words[position] != "--":
        name, equals, _ = words[position].partition("=")
        option = _hyphenated(name)
        if option in launcher.module:
            kind = Kind.MODULE
        elif option in launcher.program:
            kind = Kind.PROGRAM
        elif option == launcher.without_local_rank:
            tells_rank = False
        is_whole = equals or launcher.takes_no_value(option) or _has_attached_value(option)
        position += 1 if is_whole else 2
    options, rest = words[:position], [*words[position:]]
    if rest[:1] == ["--"]:
        del rest[0]
    if not rest:
        raise CommandError(f"the command line of {launcher.name} names no script; add it after the options")
    return Command(
        kind,
        rest[0],
        tuple(rest[1:]),
        local_rank=launcher.local_rank if tells_rank else "",
        accelerate_options=tuple(options) if launcher.name == launchers.ACCELERATE else (),
    )


def _hyphenated(option: str) -> str:
    return option.replace("_", "-") if option.startswith("--") else option


def _has_attached_value(option: str) -> bool:
    """``-t3`` is ``-t 3``."""
    return not option.startswith("--") and len(option) > 2
