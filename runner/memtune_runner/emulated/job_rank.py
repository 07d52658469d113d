"""Prepares rank 0 of a job on the emulated GPU, whose process stands for all ranks of all nodes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from memtune.wire.frameworks import commands_of
from memtune_runner.command import checks
from memtune_runner.command.command import Command, CommandError, Kind, parse
from memtune_runner.emulated import installed_torch
from memtune_runner.emulated import variables as gpu_variables
from memtune_runner.emulated.build import build
from memtune_runner.emulated.errors import EmulationError, NoCudaTorchError
from memtune_runner.emulated.installed_torch import InstalledTorch
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.settings import Settings


def prepare(words: Sequence[str]) -> int:
    """Find and build what a command needs before its runs start; return the exit code, with a message if not 0."""
    try:
        command = parse(words)
        torch = _torch_of(command, checks.python_of(command))
        build(torch.directory, torch.torch, torch.cuda)
    except CommandError as error:
        print(f"memtune: {error}", file=sys.stderr)
        return EmulationError.exit_code
    except EmulationError as error:
        print(f"memtune: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def variables(settings: Settings, command: Command, python: tuple[str, ...]) -> dict[str, str]:
    """Return the variables of the rank's process."""
    assert settings.gpu_memory_bytes is not None  # the settings reject an emulated GPU without a size
    try:
        gpu = gpu_variables.known_gpu(settings.gpu_name).with_memory(settings.gpu_memory_bytes)
        found = gpu_variables.variables(gpu, settings.world, settings.gpus_per_node, _torch_of(command, python))
    except EmulationError as error:
        raise BadInputError(f"device emulated: {error}") from None
    # Replaces the list of real GPUs to use on this machine.
    return found | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(settings.gpus_per_node)))}


def _torch_of(command: Command, python: tuple[str, ...]) -> InstalledTorch:
    """Return the torch of a command's Python, or of the last program of a shell's whose Python has one."""
    if command.kind is not Kind.PROGRAM:
        return installed_torch.find_in(python)
    refusal = EmulationError(
        f"{command.target} starts neither Python nor a launcher that is known, and the emulated GPU is made for one "
        "torch; make the command that of your script, like torchrun train.py"
    )
    for words in reversed(commands_of([command.target, *command.arguments])):
        try:
            started = checks.of_console_script(parse(words))
            if started.kind is not Kind.PROGRAM:
                return installed_torch.find_in(checks.python_of(started))
        except CommandError:
            continue  # a launcher that only prints something
        except NoCudaTorchError as error:
            refusal = error  # a tool in Python beside the training, unless no other has torch
    raise refusal
