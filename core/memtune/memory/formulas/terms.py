"""One addend of the memory model: its bytes, the phases it lives in, and its formula to be read by a person."""

from __future__ import annotations

from typing import NamedTuple

# The moments at which a step can peak, in order. `loss` is where the backward pass begins, `backward` its deepest
# layer, `reduce` its end, when all gradients are there.
PHASES = ("init", "forward", "loss", "backward", "reduce", "first step", "step", "evaluation", "save")
INIT, FORWARD, LOSS, BACKWARD, REDUCE, FIRST_STEP, STEP, EVALUATION, SAVE = range(len(PHASES))
ALWAYS = tuple(range(len(PHASES)))
TRAINING = (FORWARD, LOSS, BACKWARD, REDUCE, FIRST_STEP, STEP)
AFTER_FIRST_STEP = (FORWARD, LOSS, BACKWARD, REDUCE, FIRST_STEP, STEP, EVALUATION, SAVE)
STEPPING = (FIRST_STEP, STEP)


class Term(NamedTuple):
    """One addend. `template` is filled with `values` only when somebody reads the formula.

    One that `scales` is proportional to the micro-batch, any other does not depend on it.
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
