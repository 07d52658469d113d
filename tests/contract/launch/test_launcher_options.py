"""The launchers' own parsers agree with what MemTune knows of their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from memtune_runner.command import launchers
from memtune_runner.command.launchers import KnownLauncher


def torchrun() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def torch_launch() -> argparse.ArgumentParser:
    from torch.distributed import launch

    return caught(lambda: launch.parse_args([]))


def accelerate() -> argparse.ArgumentParser:
    from accelerate.commands.launch import launch_command_parser  # type: ignore[import-untyped]  # it has no types

    found: argparse.ArgumentParser = launch_command_parser()
    return found


def deepspeed() -> argparse.ArgumentParser:
    from deepspeed.launcher import runner  # type: ignore[import-untyped]  # it has no types

    return caught(runner.parse_args)


def caught(parse: Callable[[], Any]) -> argparse.ArgumentParser:
    """The parser that a function makes, at the moment when it is used."""
    made: list[argparse.ArgumentParser] = []
    with patch.object(argparse.ArgumentParser, "parse_args", lambda parser, *_, **__: made.append(parser)):
        parse()
    return made[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("launcher", "parser"),
    [
        (launchers.PROGRAMS["torchrun"], torchrun),
        (launchers.MODULES["torch.distributed.launch"], torch_launch),
        (launchers.PROGRAMS["accelerate"], accelerate),
        (launchers.PROGRAMS["deepspeed"], deepspeed),
    ],
)
def test_the_flags_are_those_of_the_installed_version(
    launcher: KnownLauncher, parser: Callable[[], argparse.ArgumentParser]
) -> None:
    flags: set[str] = set()
    valued: set[str] = set()
    for action in parser()._actions:
        names = {name.replace("_", "-") if name.startswith("--") else name for name in action.option_strings}
        if names and "-h" not in names:
            (flags if action.nargs == 0 else valued).update(names)
    known = launcher.flags | launcher.module | launcher.program | {launcher.without_local_rank} - {""}
    assert flags == known
    assert not {name for name in valued if launcher.takes_no_value(name)}
