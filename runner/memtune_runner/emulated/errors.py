"""Why a command cannot be run on an emulated GPU, each reason with its own exit code."""

from __future__ import annotations


class EmulationError(Exception):
    """Bad input. The message says what is wrong and what to do."""

    exit_code = 2


class NoCompilerError(EmulationError):
    """The emulation cannot be built on this machine."""

    exit_code = 3


class NoCudaTorchError(EmulationError):
    """The command's Python has no torch that was built for CUDA."""

    exit_code = 3


class ArchitectureError(EmulationError):
    """The emulation does not run on this kind of machine."""

    exit_code = 4


class UnknownGpuError(EmulationError):
    """No GPU of this name is in the table."""

    exit_code = 5
