"""Every way to violate a schema, one field at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from job_with_every_field import MISSING

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
    """Each field below ``path`` with an invalid value, for each of its schema's constraints."""
    yield from ((path, value) for value in (*_of_another_type(schema), *_outside(schema)))
    for name, field in schema.get("properties", {}).items():
        yield from wrong_values(field, f"{path}.{name}")
    for name in schema.get("required", []):
        yield from ((f"{path}.{name}", value) for value in (None, MISSING))
    if "items" in schema:
        yield from ((path, [value]) for _, value in wrong_values(schema["items"], path))


def _of_another_type(schema: Schema) -> Iterator[Any]:
    yield _OF_ANOTHER_TYPE[schema["type"]]
    if schema["type"] == "integer":
        yield 1.5
        yield True


def _outside(schema: Schema) -> Iterator[Any]:
    if "enum" in schema:
        yield "something else"
    if "pattern" in schema:
        yield "\n"
        yield ""
    if "maxLength" in schema:
        yield "a" * (schema["maxLength"] + 1)
    if "minLength" in schema:
        yield ""
    if "minItems" in schema:
        yield []
    if "maxItems" in schema:
        yield [_right(schema["items"], number) for number in range(schema["maxItems"] + 1)]
    if "minimum" in schema:
        yield schema["minimum"] - (0 if schema.get("exclusiveMinimum") else 1)
    if "maximum" in schema:
        yield schema["maximum"] + (0 if schema.get("exclusiveMaximum") else 1)


def _right(schema: Schema, number: int) -> Any:
    """A valid value; a different one for each number if there are enough."""
    if "enum" in schema:
        return schema["enum"][number % len(schema["enum"])]
    if schema["type"] == "integer":
        return schema["minimum"] + number % (schema["maximum"] - schema["minimum"] + 1)
    return f"every-{number + 2}"  # a checkpointing mode, and a name
