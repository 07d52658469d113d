"""Why a command cannot run on an emulated GPU: one exception and exit code for each reason."""

from __future__ import annotations


class EmulationError(Exception):
    """Bad input. The message says what is wrong and what to do."""

    exit_code = 2


class NoCompilerError(EmulationError):
    """The emulation cannot be built on this machine."""

    exit_code = 3


class NoCudaTorchError(EmulationError):
    """The command's Python has no CUDA build of torch."""

    exit_code = 3


class ArchitectureError(EmulationError):
    """The emulation does not support this CPU architecture."""

    exit_code = 4


class UnknownGpuError(EmulationError):
    """No GPU of this name is in the table."""

    exit_code = 5
