"""`Tape`: the allocations and frees of a run, recorded before they are played to the allocator."""

from __future__ import annotations

from collections.abc import Iterable

# The kinds of memory in a step's timeline.
KINDS = ("weights", "optimizer states", "gradients", "communication", "activations", "temporaries")
WEIGHTS, STATES, GRADIENTS, COMMUNICATION, ACTIVATIONS, TEMPORARIES = range(len(KINDS))
# The parts of a run, in order; those after the first repeat in every step.
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
        """Allocate a tensor that stays until it is freed."""
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
        """Free these tensors."""
        self.events += [~number for number in numbers if number != NOTHING]

    def hold_all(self, sizes: Iterable[float], kind: int) -> list[int]:
        """Allocate tensors one after the other."""
        return [self.hold(size, kind) for size in sizes]

    def pass_by(self, *sizes: float) -> None:
        """Allocate temporaries together and free them."""
        self.free(*self.hold_all(sizes, TEMPORARIES))

    def begin(self, phase: int) -> None:
        """Begin another part of the run."""
        self.marks.append((len(self.events), phase))
