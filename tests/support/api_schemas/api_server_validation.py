"""The API server's handling of an object before storage: nulls, defaults, and its CRD's CEL rules.

The rules are evaluated by cel-rust, which like the API server fails on a missing field, a division by zero, an overflow
and mismatched types; a rule that fails raises. Written after the sources of k8s.io/apiextensions-apiserver:
pkg/apiserver/schema/defaulting and pkg/apiserver/schema/cel.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import cel

Schema = dict[str, Any]


class Broken(NamedTuple):
    """A broken rule: the field that it blames, its message and its reason."""

    path: str
    message: str
    reason: str


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every node of the schema with its path."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def with_defaults(schema: Schema, value: Any) -> Any:
    """The value without nulls and with defaults, also inside blocks that come from a default."""
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(schema["items"], item) for item in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    fields = schema["properties"]
    given = {name: inner for name, inner in value.items() if inner is not None or name not in fields}
    filled = {name: copy.deepcopy(field["default"]) for name, field in fields.items() if "default" in field} | given
    return {name: with_defaults(fields.get(name, {}), inner) for name, inner in filled.items()}


def broken_rules(schema: Schema, new: Any, old: Any = None, path: str = "") -> Iterator[Broken]:
    """The rules that an object with its defaults breaks; ``old`` is the stored object."""
    if "x-kubernetes-validations" in schema:
        yield from _broken_here(schema, new, old, path)
    if isinstance(new, list):
        for place, item in enumerate(new):
            yield from broken_rules(schema["items"], item, None, f"{path}[{place}]")
    elif isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        for name in new.keys() & schema.get("properties", {}).keys():
            yield from broken_rules(schema["properties"][name], new[name], before.get(name), f"{path}.{name}")


def _broken_here(schema: Schema, new: Any, old: Any, path: str) -> Iterator[Broken]:
    """The rules of one node that it breaks, without those of the nodes below it."""
    floats = [each for value in (new, old) for each in _floats_for_integers(schema, value)]
    names = {"self": _as_cel(schema, new)} | ({} if old is None else {"oldSelf": _as_cel(schema, old)})
    for rule in schema["x-kubernetes-validations"]:
        if "oldSelf" in rule["rule"] and old is None:
            continue
        try:
            holds = _value(_knowing_fields(rule["rule"], floats), names)
        except KeyError as missing:
            if missing.args[0] not in {each.rpartition(".")[2] for each in floats}:
                raise
            words = f"invalid data, expected int, got float64 evaluating rule: {rule['message']}"
            yield Broken(path.removeprefix("."), words, "FieldValueInvalid")
            continue
        assert isinstance(holds, bool), f"{path}: {rule['rule']} is {holds!r}"
        if not holds:
            blamed = (path + rule.get("fieldPath", "")).removeprefix(".")
            yield Broken(blamed, rule["message"], rule.get("reason", "FieldValueInvalid"))


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise IndexError(f"substring({start}, {end}) of {text!r}: index out of range")
    return text[start:end]


# The functions that rules use of those that Kubernetes adds to CEL: strings of cel-go's ext package.
_FUNCTIONS = {
    "split": lambda text, separator: text.split(separator),
    "indexOf": lambda text, part: text.find(part),
    "substring": _substring,
}


@cache
def _program(rule: str) -> Any:
    return cel.compile(rule)


_values: dict[tuple[str, str], Any] = {}


def _value(rule: str, names: dict[str, Any]) -> Any:
    """What a rule comes to; each is evaluated once for what it can read, since most changes are of other fields."""
    read = {name: _readable(rule, value) for name, value in names.items() if name in rule}
    # Unlike a value itself, its text is not the same for 1, 1.0 and True.
    known = (rule, repr(read))
    if known not in _values:
        _values[known] = _program(rule).execute(cel.Context(variables=read, functions=_FUNCTIONS))
    return _values[known]


def _readable(rule: str, value: Any) -> Any:
    """The value without the fields that the rule does not name, unless it reads the value as a whole."""
    if not isinstance(value, dict) or _reads_a_whole(rule):
        return value
    return {name: inner for name, inner in value.items() if name in rule}


@cache
def _reads_a_whole(rule: str) -> bool:
    return re.search(r"\b(self|oldSelf)\b(?!\.)", rule) is not None


def _floats_for_integers(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Each integer field, or item of its list, that a client wrote with a decimal point.

    The schema accepts it, but a rule that reads it fails.
    """
    if _is_float_for_integer(schema, value):
        yield path
    elif isinstance(value, dict):
        for name, field in schema.get("properties", {}).items():
            yield from _floats_for_integers(field, value.get(name), f"{path}.{name}")


def _is_float_for_integer(schema: Schema, value: Any) -> bool:
    if isinstance(value, list) and "items" in schema:
        return any(_is_float_for_integer(schema["items"], item) for item in value)
    return schema.get("type") == "integer" and isinstance(value, float)


def _knowing_fields(rule: str, paths: list[str]) -> str:
    """The rule for an object that has() these fields, although reading one fails."""
    for path in paths:
        rule = re.sub(rf"has\((self|oldSelf){re.escape(path)}\)", "true", rule)
    return rule


def _as_cel(schema: Schema, value: Any) -> Any:
    """A value as a rule reads it, typed by the schema."""
    if isinstance(value, dict) and "properties" in schema:
        fields = schema["properties"]
        return {
            name: _as_cel(fields[name], inner)
            for name, inner in value.items()
            if name in fields and not _is_float_for_integer(fields[name], inner)
        }
    if isinstance(value, list) and "items" in schema:
        return [_as_cel(schema["items"], item) for item in value]
    return float(value) if schema.get("type") == "number" else value
