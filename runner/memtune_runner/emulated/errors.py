"""Why a command cannot run on an emulated GPU: one exception and exit code for each reason."""

from __future__ import annotations

from memtune_runner.emulated import exit_codes


class EmulationError(Exception):
    """Bad input. The message says what is wrong and what to do."""

    exit_code = exit_codes.BAD_INPUT


class NoCompilerError(EmulationError):
    """The emulation cannot be built on this machine."""

    exit_code = exit_codes.NO_TORCH_OR_COMPILER


class NoCudaTorchError(EmulationError):
    """The command's Python has no CUDA build of torch."""

    exit_code = exit_codes.NO_TORCH_OR_COMPILER


class ArchitectureError(EmulationError):
    """The emulation does not support this CPU architecture."""

    exit_code = exit_codes.UNSUPPORTED_MACHINE


class UnknownGpuError(EmulationError):
    """No GPU of this name is in the table."""

    exit_code = exit_codes.UNKNOWN_GPU
