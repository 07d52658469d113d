"""Training frameworks with their own loop or launcher: which integrations support them, and the alternatives.

A job whose command starts a framework that its integration does not support is refused before any pod is created. The
runner refuses a script that imports one before it trains.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import NamedTuple


class Framework(NamedTuple):
    """A framework: how its commands begin, what its training loops import, and what its users can do."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    modules: tuple[str, ...]
    instead: str
    integrations: tuple[str, ...] = ()

    def unsupported(self, integration: str) -> str:
        """Why a job that uses the framework under an integration is refused, and what to do."""
        return f"integration {integration} does not support {self.name}: {self.instead} (docs/integrations.md)"


_HF_TRAINER = (
    "train with transformers' Trainer or TRL's SFTTrainer in a script of your own, and set integration hf-trainer"
)

FRAMEWORKS = (
    Framework(
        "Ray Train",
        (("ray", "job", "submit"),),  # RL libraries also use ray, for generation, through its other commands
        ("ray.train",),
        "start the training function with torchrun and set the integration of the library that it trains with, or keep "
        "Ray and copy the plan that `memtune plan` chooses into its configuration",
    ),
    Framework(
        "torchtune",
        (("tune", "run"),),
        ("torchtune.recipe_interfaces",),
        "set integration env, and pass batch_size=$(MEMTUNE_MICRO_BATCH) and "
        "gradient_accumulation_steps=$(MEMTUNE_ACCUMULATION) to the recipe",
        ("env",),
    ),
    Framework(
        "LitGPT",
        (("litgpt",),),
        ("litgpt",),
        "set integration lightning, and pass --train.micro_batch_size $(MEMTUNE_MICRO_BATCH) and "
        "--train.global_batch_size $(MEMTUNE_GLOBAL_BATCH) to it",
        ("env", "lightning"),
    ),
    Framework("Axolotl", (("axolotl",),), ("axolotl",), _HF_TRAINER),
    Framework("LLaMA-Factory", (("llamafactory-cli",), ("lmf",)), ("llamafactory", "llmtuner"), _HF_TRAINER),
)
# Prefixes of a command, which may have options and assignments of their own, and words of a shell before one.
_PREFIXES = (
    *((word,) for word in ("exec", "env", "nice", "nohup", "time", "timeout")),
    *((word,) for word in ("if", "elif", "while", "until", "then", "else", "do", "!", "{")),
    ("uv", "run"),
    ("poetry", "run"),
)
# Arguments of prefixes' options, and the duration of `timeout`: numbers and names of signals or variables.
_VALUE = re.compile(r"[\d.]+[smhd]?|[A-Z][A-Z0-9_]*")
_MODULE = ("-m", "--module")
# Arguments with which a program only describes itself.
_ASKS = {"-h", "--help", "--version"}
_SHELLS = ("sh", "bash", "dash", "zsh")
_BETWEEN_COMMANDS = re.compile(r"&&|\|\||[;|&\n]")


def framework_of(words: Sequence[str]) -> Framework | None:
    """The framework that a command starts, directly, as a module or from a shell; or None."""
    return next(filter(None, map(_framework_of_program, commands_of(words))), None)


def commands_of(words: Sequence[str]) -> list[list[str]]:
    """The commands that a command line starts, without prefixes such as `env`: itself, or those in its shell's text."""
    command = _without_prefixes(words)
    if command and _name(command) in _SHELLS:
        return [command for inner in _commands_in_shell(command) for command in commands_of(inner)]
    return [command] if command else []


def _framework_of_program(command: Sequence[str]) -> Framework | None:
    if command[1:] and _ASKS.issuperset(command[1:]):
        return None  # as a condition of a shell
    for framework in FRAMEWORKS:
        if any(_begins(command, start) for start in framework.commands):
            return framework
    return _framework_of_module(command)


def _without_prefixes(words: Sequence[str]) -> list[str]:
    command = list(words)
    while command:
        if "=" in command[0]:
            del command[0]
            continue
        prefix = next((each for each in _PREFIXES if _begins(command, each)), None)
        if prefix is None:
            break
        del command[: len(prefix)]
        while command and (command[0].startswith("-") or _VALUE.fullmatch(command[0])) and command[0] not in _MODULE:
            del command[0]
    return command


def _begins(command: Sequence[str], start: tuple[str, ...]) -> bool:
    return (_name(command), *command[1 : len(start)]) == start


def _name(command: Sequence[str]) -> str:
    """A command's program without its directory."""
    return PurePosixPath(command[0]).name


def _framework_of_module(words: Sequence[str]) -> Framework | None:
    """The framework that ``-m`` of Python or a launcher starts; words after a script are its own arguments."""
    for option, module in pairwise(words):
        if option.endswith(".py"):
            return None
        if option in _MODULE:
            package = module.split(".")[0]
            for framework in FRAMEWORKS:
                if package in {name.split(".")[0] for name in framework.modules}:
                    return framework
    return None


def _commands_in_shell(words: Sequence[str]) -> list[list[str]]:
    """The commands in a shell's ``-c``, if readable without running it."""
    scripts = [script for option, script in pairwise(words) if re.fullmatch(r"-[a-z]*c", option)]
    found = []
    script = scripts[0].replace("\\\n", " ") if scripts else ""  # a line that goes on in the next
    for text in _BETWEEN_COMMANDS.split(script):
        try:
            found.append(shlex.split(text.lstrip(" \t(").rstrip(" \t)"), comments=True))
        except ValueError:
            continue  # a quoted part was cut: it is not a command of its own
    return found
