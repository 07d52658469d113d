"""Values against the schema of a CustomResourceDefinition, as an API server reads it that refuses unknown fields."""

from __future__ import annotations

import re
from typing import Any

Schema = dict[str, Any]
_KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def refusals(schema: Schema, value: Any, path: str = "") -> list[str]:
    """What of a value the API server would refuse by this schema, with unknown fields refused."""
    if schema.get("x-kubernetes-int-or-string"):
        is_either = isinstance(value, (int, str)) and not isinstance(value, bool)
        return [] if is_either else [f"{path}: {value!r} is neither integer nor string"]
    if not isinstance(value, _KINDS[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        return [f"{path}: {value!r} is no {schema['type']}"]
    if isinstance(value, dict):
        return _of_block(schema, value, path)
    if isinstance(value, list):
        return [r for i, item in enumerate(value) for r in refusals(schema["items"], item, f"{path}[{i}]")]
    wrong = [
        "enum" in schema and value not in schema["enum"],
        "pattern" in schema and not re.search(schema["pattern"], str(value)),
        "minimum" in schema and value < schema["minimum"],
        "maximum" in schema and value > schema["maximum"],
        "maxLength" in schema and len(str(value)) > schema["maxLength"],
        "minLength" in schema and len(str(value)) < schema["minLength"],
    ]
    return [f"{path}: {value!r}"] if any(wrong) else []


def _of_block(schema: Schema, value: Schema, path: str) -> list[str]:
    if isinstance(of_any := schema.get("additionalProperties"), dict):
        return [r for name, item in value.items() for r in refusals(of_any, item, f"{path}.{name}")]
    if schema.get("x-kubernetes-preserve-unknown-fields") or "properties" not in schema:
        return []
    fields = schema["properties"]
    found = [f"{path}.{name} is unknown" for name in value if name not in fields]
    found += [f"{path}.{name} is required" for name in schema.get("required", ()) if name not in value]
    return found + [
        r for name in value if name in fields for r in refusals(fields[name], value[name], f"{path}.{name}")
    ]
