"""What a run allocates and frees, written down before it is played to the allocator."""

from __future__ import annotations

from collections.abc import Iterable

# What memory is held for, as the picture of a step shows it.
KINDS = ("weights", "optimizer states", "gradients", "communication", "activations", "temporaries")
WEIGHTS, STATES, GRADIENTS, COMMUNICATION, ACTIVATIONS, TEMPORARIES = range(len(KINDS))
# The parts of a run, in order; those after the first come in every step.
PHASES = ("init", "forward", "backward", "step")
INIT, FORWARD, BACKWARD, STEP = range(len(PHASES))

# CUDA streams: FSDP gathers and reduces beside the computation, and each stream has its own pools.
COMPUTE, GATHER, REDUCE = range(3)

NOTHING = -1  # stands for a tensor without bytes


class Tape:
    """Events are numbers: a tensor's own to allocate it, its complement to free it."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.sizes: list[int] = []
        self.kinds: list[int] = []
        self.streams: dict[int, int] = {}
        self.marks: list[tuple[int, int]] = []

    def hold(self, size_bytes: float, kind: int, stream: int = COMPUTE) -> int:
        """A new tensor; it is there until it is freed."""
        size = int(size_bytes)
        if size <= 0:
            return NOTHING
        number = len(self.sizes)
        self.sizes.append(size)
        self.kinds.append(kind)
        self.events.append(number)
        if stream:
            self.streams[number] = stream
        return number

    def free(self, *numbers: int) -> None:
        """These tensors go."""
        self.events += [~number for number in numbers if number != NOTHING]

    def hold_all(self, sizes: Iterable[float], kind: int) -> list[int]:
        """New tensors, one after the other."""
        return [self.hold(size, kind) for size in sizes]

    def pass_by(self, *sizes: float) -> None:
        """Temporaries that are there together for a moment."""
        self.free(*self.hold_all(sizes, TEMPORARIES))

    def begin(self, phase: int) -> None:
        """From here on it is another part of the run."""
        self.marks.append((len(self.events), phase))
