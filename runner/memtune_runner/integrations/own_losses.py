"""Whether a script's `compute_loss`, or its model, weighs a micro-batch by its whole step, as the Trainer asks."""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
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


def model_weighs(forward: Any) -> bool:
    """Whether a model's forward pass gives its loss what the Trainer passes beside the labels: its step's tokens.

    Many models of transformers take it, so that the Trainer relies on them, and have the mean of the micro-batch as
    their loss nevertheless. A function that cannot be read, or takes no labels, is taken to weigh.
    """
    try:
        if "labels" not in inspect.signature(forward).parameters:
            return True
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(forward)))
        calls = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Call)]
    except (OSError, TypeError, ValueError, SyntaxError):
        return True
    return _TOKENS_OF_STEP in source or any(
        any(keyword.arg is None for keyword in call.keywords)
        and any(isinstance(each, ast.Name) and each.id == "labels" for each in ast.walk(call))
        for call in calls
    )


def reduces_by_sum(compute_loss: Any) -> bool:
    """Whether the function asks a loss for ``reduction="sum"``; many a mean is made with the method ``sum``."""
    return "sum" in inspect.unwrap(compute_loss).__code__.co_consts


def _loaded(instruction: dis.Instruction) -> set[Any]:
    """The names that an instruction reads: one, or two at once."""
    if not instruction.opname.startswith("LOAD"):
        return set()
    return set(instruction.argval) if isinstance(instruction.argval, tuple) else {instruction.argval}
