"""Schemas of CRDs: those of other projects, and what an API server refuses by one where it refuses unknown fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import fast_yaml
import pytest
from helm_chart import ROOT

Schema = dict[str, Any]
# After one of these the API server evaluates no rule: hasBlockingErr in registry/customresource/strategy.go of
# k8s.io/apiextensions-apiserver. Since 1.30 a value outside of an enum is one of them; an older server goes on.
BLOCKING = ("type", "required", "maxLength", "maxItems", "maxProperties")


def refusals(schema: Schema, value: Any, path: str = "") -> list[str]:
    """What of a value the API server would refuse by this schema, with unknown fields refused."""
    return [f"{where}: {words}" for where, _, words in _found(schema, value, path)]


def keeps_rules_from_running(schema: Schema, value: Any) -> bool:
    """Whether the value is so far from the schema that no rule is evaluated."""
    return any(keyword in BLOCKING for _, keyword, _ in _found(schema, value, ""))


_Found = Iterator[tuple[str, str, str]]


def _found(schema: Schema, value: Any, path: str) -> _Found:
    """Where, against which keyword, and in words."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, (int, str)) or isinstance(value, bool):
            yield path, "type", f"{value!r} is neither integer nor string"
        return
    if not _is_a(schema["type"], value):
        yield path, "type", f"{value!r} is no {schema['type']}"
    elif isinstance(value, dict):
        yield from _of_block(schema, value, path)
    elif isinstance(value, list):
        yield from _of_list(schema, value, path)
    else:
        yield from ((path, keyword, repr(value)) for keyword in _broken_limits(schema, value))


def _is_a(kind: str, value: Any) -> bool:
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        # IsFloat64AJSONInteger of kube-openapi; what has more than 64 bits arrives as a float.
        is_float = isinstance(value, float) or not -(2**63) <= value < 2**63
        return kind == "number" or not is_float or (value == int(value) and abs(value) < 2**53)
    kinds: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool}
    return isinstance(value, kinds[kind])


def _broken_limits(schema: Schema, value: Any) -> list[str]:
    tests: dict[str, Callable[[Any], object]] = {
        "enum": lambda choices: value in choices,
        # Go's $ is the end of the text, Python's also stands before a last line break.
        "pattern": lambda pattern: re.search(re.sub(r"\$$", r"\\Z", pattern), value),
        "minimum": lambda least: value > least if schema.get("exclusiveMinimum") else value >= least,
        "maximum": lambda most: value < most if schema.get("exclusiveMaximum") else value <= most,
        "maxLength": lambda most: len(value) <= most,
        "minLength": lambda least: len(value) >= least,
    }
    return [keyword for keyword, holds in tests.items() if keyword in schema and not holds(schema[keyword])]


def _of_list(schema: Schema, value: list[Any], path: str) -> _Found:
    if len(value) > schema.get("maxItems", len(value)):
        yield path, "maxItems", f"{len(value)} items"
    if len(value) < schema.get("minItems", 0):
        yield path, "minItems", f"{len(value)} items"
    if schema.get("x-kubernetes-list-type") == "set" and any(item in value[:place] for place, item in enumerate(value)):
        yield path, "x-kubernetes-list-type", "an item twice"
    for place, item in enumerate(value):
        yield from _found(schema["items"], item, f"{path}[{place}]")


def _of_block(schema: Schema, value: Schema, path: str) -> _Found:
    if len(value) > schema.get("maxProperties", len(value)):
        yield path, "maxProperties", f"{len(value)} fields"
    if isinstance(of_any := schema.get("additionalProperties"), dict):
        for name, item in value.items():
            yield from _found(of_any, item, f"{path}.{name}")
        return
    if schema.get("x-kubernetes-preserve-unknown-fields") or "properties" not in schema:
        return
    fields = schema["properties"]
    yield from ((f"{path}.{name}", "unknown", "is unknown") for name in value if name not in fields)
    required = schema.get("required", ())
    yield from ((f"{path}.{name}", "required", "is required") for name in required if name not in value)
    for name in value.keys() & fields.keys():
        yield from _found(fields[name], value[name], f"{path}.{name}")


def contract(file: str) -> dict[str, Any]:
    """The CRD in this file of `shared/contracts`; where there is no such directory, the test is skipped."""
    for directory in ROOT.parents:
        path = directory / "shared" / "contracts" / file
        if path.is_file():
            found: dict[str, Any] = fast_yaml.load(path.read_text())
            return found
    pytest.skip(f"no contracts/{file} in a directory `shared` beside the checkout: other projects' CRDs are there")


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    """What the first version of a CRD says of its objects."""
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema
