"""Whether a script's `compute_loss`, or its model, weighs a micro-batch by its whole step, as the Trainer asks."""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from typing import Any

_TOKENS_OF_STEP = "num_items_in_batch"
_MICRO_BATCHES_OF_STEP = ("gradient_accumulation_steps", "current_gradient_accumulation_steps")
_LABELS = ("labels", "shift_labels")


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


def calls_inherited(compute_loss: Any) -> bool:
    """Whether the function calls that of the class above it."""
    code = getattr(inspect.unwrap(compute_loss), "__code__", None)
    return code is not None and not {"super", "__class__"}.isdisjoint((*code.co_names, *code.co_freevars))


def model_weighs(forward: Any) -> bool:
    """Whether a model's forward pass gives its loss the number of the step's tokens, which the Trainer passes beside
    the labels.

    Many models of transformers accept it, so that the Trainer relies on them, but still return the mean of the
    micro-batch. A function that cannot be read, or takes no labels, is taken to weigh.
    """
    try:
        if "labels" not in inspect.signature(forward).parameters:
            return True
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(forward)))
        nodes = list(ast.walk(ast.parse(source)))
    except (OSError, TypeError, ValueError, SyntaxError):
        return True
    return any(map(_passes_tokens_on, nodes))


def _passes_tokens_on(node: ast.AST) -> bool:
    """Whether a node uses the tokens of the step, or calls something with labels and all that came beside them."""
    if isinstance(node, ast.BinOp):  # a division by what was looked up
        return any(isinstance(each, ast.Constant) and each.value == _TOKENS_OF_STEP for each in ast.walk(node))
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Name) and node.id == _TOKENS_OF_STEP
    names = {keyword.arg for keyword in node.keywords}
    has_labels = any(isinstance(each, ast.Name) and each.id in _LABELS for each in ast.walk(node))
    return _TOKENS_OF_STEP in names or (None in names and (has_labels or not names.isdisjoint(_LABELS)))


def reduces_by_sum(compute_loss: Any) -> bool:
    """Whether the function asks a loss for ``reduction="sum"``; many a mean is made with the method ``sum``."""
    return "sum" in inspect.unwrap(compute_loss).__code__.co_consts


def _loaded(instruction: dis.Instruction) -> set[Any]:
    """The names that an instruction reads: one, or two at once."""
    if not instruction.opname.startswith("LOAD"):
        return set()
    return set(instruction.argval) if isinstance(instruction.argval, tuple) else {instruction.argval}
