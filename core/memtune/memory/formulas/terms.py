"""`Term`: one addend of the memory model, with its bytes, its phases and its readable formula."""

from __future__ import annotations

from typing import NamedTuple

# The moments at which a step can peak, in order. `loss` is the start of the backward pass, `backward` its deepest
# layer, `first layer` its last one, beside the gradients of all others, `reduce` its end, when all gradients exist.
PHASES = ("init", "forward", "loss", "backward", "first layer", "reduce", "first step", "step", "evaluation", "save")
INIT, FORWARD, LOSS, BACKWARD, FIRST_LAYER, REDUCE, FIRST_STEP, STEP, EVALUATION, SAVE = range(len(PHASES))
ALWAYS = tuple(range(len(PHASES)))
AFTER_FIRST_STEP = (FORWARD, LOSS, BACKWARD, FIRST_LAYER, REDUCE, FIRST_STEP, STEP, EVALUATION, SAVE)
STEPPING = (FIRST_STEP, STEP)
# While gradients are reduced as they come.
REDUCING = (BACKWARD, FIRST_LAYER, REDUCE)
# The terms outside the allocator.
DRIVER_OVERHEAD = frozenset({"context", "nccl"})


class Term(NamedTuple):
    """One term. `template` is filled with `values` only when somebody reads the formula.

    A term that `scales` is proportional to the micro-batch; any other does not depend on it.
    """

    name: str
    bytes: float
    phases: tuple[int, ...]
    template: str
    values: tuple[object, ...]
    source: str
    scales: bool = False

    @property
    def formula(self) -> str:
        """The formula with its numbers filled in."""
        return self.template.format(*self.values)

    @property
    def phase_names(self) -> tuple[str, ...]:
        """The phases in which these bytes live."""
        return tuple(PHASES[phase] for phase in self.phases)
