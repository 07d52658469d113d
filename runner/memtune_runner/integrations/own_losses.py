"""Whether a script's `compute_loss` weighs a micro-batch by its whole step, as the Trainer asks."""

from __future__ import annotations

import dis
import inspect
from typing import Any

_TOKENS_OF_STEP = "num_items_in_batch"
_MICRO_BATCHES_OF_STEP = ("gradient_accumulation_steps", "current_gradient_accumulation_steps")


def weighs(compute_loss: Any) -> bool:
    """Whether the function reads how many tokens or micro-batches its step has, or passes on the tokens.

    A function that cannot be read is taken to do so.
    """
    code = getattr(inspect.unwrap(compute_loss), "__code__", None)
    if code is None:
        return True
    takes_more = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    positional = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    names = {_TOKENS_OF_STEP, *_MICRO_BATCHES_OF_STEP, *code.co_varnames[positional : positional + takes_more]}
    return any(names & _loaded(each) for each in dis.get_instructions(code))


def reduces_by_sum(compute_loss: Any) -> bool:
    """Whether the function asks a loss for ``reduction="sum"``; many a mean is made with the method ``sum``."""
    return "sum" in inspect.unwrap(compute_loss).__code__.co_consts


def _loaded(instruction: dis.Instruction) -> set[Any]:
    """The names that an instruction reads: one, or two at once."""
    if not instruction.opname.startswith("LOAD"):
        return set()
    return set(instruction.argval) if isinstance(instruction.argval, tuple) else {instruction.argval}
