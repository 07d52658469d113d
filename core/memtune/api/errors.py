"""Validation errors of an object (`SpecError`): every problem at once, with path, given value and advice."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from memtune.api.fields import LABEL_VALUE, PATTERN_WORDS

_LONGEST_SHOWN = 60
# Names that peft and its users know, and their names here.
_NAMED_ELSEWHERE = {"r": "rank", "target_modules": "targets"}
_CHOSEN_ELSEWHERE = {"qlora": "lora, with baseQuantization: nf4"}


@dataclass(frozen=True)
class Problem:
    """One problem: where, what was given, and what to write instead."""

    path: str
    given: Any
    advice: str

    def __str__(self) -> str:
        return f"{self.path}: {self.advice}"


class SpecError(ValueError):
    """An invalid object, with all of its problems."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def shown(value: Any) -> str:
    """A value as an error shows it: one line of YAML, cut if long."""
    text = value if isinstance(value, str) and value else json.dumps(value, default=str)
    text = text.replace("\n", " ")
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def suggestion(name: str, allowed: Sequence[str]) -> str:
    """``did you mean x? `` if a name is close to an allowed one, else empty."""
    if len(name) > _LONGEST_SHOWN:  # nothing is close to it, and the comparison is quadratic in its length
        return ""
    lowered = {candidate.lower(): candidate for candidate in allowed}
    close = difflib.get_close_matches(name.lower().replace("_", ""), lowered, n=1, cutoff=0.6)
    return f"did you mean {lowered[close[0]]}? " if close else ""


def problems_of(error: ValidationError, root: type[BaseModel], prefix: str = "") -> list[Problem]:
    """Translate pydantic's errors into our words; paths begin with ``prefix``."""
    findings: list[dict[str, Any]] = [dict(found) for found in error.errors(include_url=False)]
    return [_problem(found, root, prefix) for found in findings if not _echoes(found)]


def _echoes(found: dict[str, Any]) -> bool:
    # Pydantic counts only valid items, so it reports one invalid item a second time as a list that is too short.
    return bool(found["type"] == "too_short" and len(found["input"]) >= found["ctx"]["min_length"])


def _problem(found: dict[str, Any], root: type[BaseModel], prefix: str) -> Problem:
    given = None if found["type"] == "missing" else found["input"]
    return Problem(path_of((prefix, *found["loc"])), given, _advice(found, root))


def path_of(location: Iterable[str | int]) -> str:
    """``spec.tuning.space.offload[0]`` from its parts."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _advice(found: dict[str, Any], root: type[BaseModel]) -> str:
    kind, given, context = found["type"], shown(found["input"]), found.get("ctx", {})
    if kind == "invalid_key":
        return f"{given} is {_yaml_type(found['input'])}, and a field's name is text; write it in quotes, or correct it"
    if kind == "missing":
        return "this field is required and was not given"
    if kind == "extra_forbidden":
        return _unknown_field(str(found["loc"][-1]), _block_at(root, found["loc"][:-1]))
    if kind in ("enum", "literal_error"):
        return _not_allowed(found["input"], context["expected"])
    if kind == "string_pattern_mismatch":
        return _another_word(found["input"], context["pattern"])
    if kind in ("twice", "no_plan"):
        return str(found["msg"])
    if kind in _LIMITS:
        sign, limit = _LIMITS[kind]
        return f"{given} is not allowed; it must be {sign} {context[limit]}"
    if kind in _LENGTHS:
        sign, limit, what = _LENGTHS[kind]
        return f"{given} is not allowed; it must have {sign} {context[limit]} {what}"
    return f"{given} is {_yaml_type(found['input'])}; it must be {_meant(found, root)}"


def _meant(found: dict[str, Any], root: type[BaseModel]) -> str:
    """The expected type, for a value of another type."""
    kind, names = found["type"], [part for part in found["loc"] if isinstance(part, str)]
    if kind == "dict_type" and names[-1:] == ["hfConfig"]:
        return "a block of fields: the content of config.json, pasted here"
    block = _block_at(root, names[:-1]) if kind == "string_type" else None
    pattern = _pattern_in(_fields(block)[names[-1]]) if block else None
    return PATTERN_WORDS[pattern] if pattern else _TYPES.get(kind, found["msg"])


def _another_word(given: str, pattern: str) -> str:
    what, _, how = PATTERN_WORDS[pattern].partition("; ")
    # The driver writes a GPU's name with blanks, the node label with dashes.
    label = given.strip().replace(" ", "-")
    hint = f"did you mean {label}? " if pattern == LABEL_VALUE and re.match(pattern, label) else ""
    return f"{shown(given)} is not {what}; {hint}{how}"


_LIMITS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
_LENGTHS = {
    "string_too_short": ("at least", "min_length", "characters"),
    "string_too_long": ("at most", "max_length", "characters"),
    "too_short": ("at least", "min_length", "items"),
    "too_long": ("at most", "max_length", "items"),
}
_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a block of fields",
    "model_type": "a block of fields",
    "model_attributes_type": "a block of fields",
}


def _yaml_type(value: Any) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", str: "text", list: "a list", dict: "a block"}
    return names.get(type(value), f"a {type(value).__name__}")


def _not_allowed(given: Any, expected: str) -> str:
    # Pydantic joins the choices as 'a', 'b' or 'c'.
    choices = expected.replace(" or ", ", ").replace("'", "").split(", ")
    known = _CHOSEN_ELSEWHERE.get(str(given))
    hint = f"did you mean {known}? " if known else suggestion(str(given), choices)
    return f"{shown(given)} is not allowed; {hint}use {either(choices)}"


def either(choices: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))


def _unknown_field(name: str, block: type[BaseModel] | None) -> str:
    allowed = sorted(field.alias or own for own, field in block.model_fields.items()) if block else []
    known = _NAMED_ELSEWHERE.get(name)
    hint = f"did you mean {known}? " if known in allowed else suggestion(name, allowed)
    return f"this field is unknown; {hint}allowed are {', '.join(allowed)}"


def _block_at(root: type[BaseModel], location: Iterable[str | int]) -> type[BaseModel] | None:
    block: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, str) and block is not None:
            block = _block_in(_fields(block)[part].annotation)
    return block


def _fields(block: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in block.model_fields.items()}


def _pattern_in(annotation: Any) -> str | None:
    """The pattern that a text must match, also inside optional values and lists."""
    limits = annotation.metadata if isinstance(annotation, FieldInfo) else ()
    own = (getattr(limit, "pattern", None) for limit in limits)
    inner = get_args(annotation.annotation if isinstance(annotation, FieldInfo) else annotation)
    return next(filter(None, (*own, *map(_pattern_in, inner))), None)


def _block_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_block_in, get_args(annotation))), None)
