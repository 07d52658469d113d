"""A rank of a job on the emulated GPU: rank 0, whose process stands for all ranks of all nodes."""

from __future__ import annotations

from memtune_runner.bad_input import BadInputError
from memtune_runner.command import Command, Kind
from memtune_runner.emulated import gpu as emulated_gpu
from memtune_runner.emulated import installed
from memtune_runner.emulated.errors import EmulationError
from memtune_runner.settings import Settings


def variables(settings: Settings, command: Command, python: tuple[str, ...]) -> dict[str, str]:
    """What the rank's process has to be started with."""
    if command.kind is Kind.PROGRAM:
        raise BadInputError(
            f"{command.target} is neither Python nor a launcher that is known, and device emulated has to know which "
            "torch will run; make the command that of your script, like torchrun train.py"
        )
    assert settings.gpu_memory_bytes is not None  # the settings refuse an emulated GPU without a size
    try:
        gpu = emulated_gpu.known_gpu(settings.gpu_name).with_memory(settings.gpu_memory_bytes)
        return emulated_gpu.variables(gpu, settings.world, installed.find_in(python))
    except EmulationError as error:
        raise BadInputError(f"device emulated: {error}") from None
