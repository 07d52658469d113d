"""Every way in which a schema can be broken, one field at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_OF_ANOTHER_TYPE: dict[str, Any] = {
    "object": "text",
    "array": "text",
    "string": 5,
    "boolean": "yes",
    "integer": "5",
    "number": "0.5",
}


def wrong_values(schema: Schema, path: str) -> Iterator[tuple[str, Any]]:
    """Each field below ``path`` with a value that the schema refuses, for each thing that the schema says of it."""
    yield path, _OF_ANOTHER_TYPE[schema["type"]]
    yield from ((path, value) for value in _outside(schema))
    for name, field in schema.get("properties", {}).items():
        yield from wrong_values(field, f"{path}.{name}")
    if "items" in schema:
        yield from ((path, [value]) for _, value in wrong_values(schema["items"], path))


def _outside(schema: Schema) -> Iterator[Any]:
    if "enum" in schema:
        yield "something else"
    if "pattern" in schema:
        yield " "
    if "maxLength" in schema:
        yield "a" * (schema["maxLength"] + 1)
    if "minLength" in schema:
        yield ""
    if "minItems" in schema:
        yield []
    if "minimum" in schema:
        yield schema["minimum"] - (0 if schema.get("exclusiveMinimum") else 1)
    if "maximum" in schema:
        yield schema["maximum"] + (0 if schema.get("exclusiveMaximum") else 1)
