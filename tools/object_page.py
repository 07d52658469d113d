"""Renders docs/object.md, the field reference of the job object, from its CRD schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import yaml

Schema = dict[str, Any]

INTRODUCTION = """\
# The `MemoryTunedJob`, field by field

Made by `make generate` from the types in `core/memtune/api`; what the API server refuses, `memtune plan` refuses too,
in the same words. A field in **bold** is required. Below the fields of a block stand the rules between them, with what
is said when one is broken. `kubectl explain mtj.spec` shows the same on a cluster.
"""


def object_page(definition: Schema) -> str:
    """The whole page in Markdown."""
    version = definition["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    blocks = {path: block for name in ("spec", "status") for path, block in _blocks(name, schema["properties"][name])}
    sections = [_section(path, block, blocks.keys()) for path, block in blocks.items()]
    columns = [f"| {each['name']} | {each['description']} |" for each in version["additionalPrinterColumns"]]
    listing = "\n".join(["## Columns of `kubectl get mtj`", "", "| column | meaning |", "|---|---|", *columns])
    return "\n\n".join([INTRODUCTION.rstrip(), *sections, listing]) + "\n"


def _blocks(path: str, schema: Schema) -> Iterator[tuple[str, Schema]]:
    """A block of fields and its nested blocks, outermost first."""
    if "properties" in schema:
        yield path, schema
        for name, field in schema["properties"].items():
            yield from _blocks(f"{path}.{name}", field)
    elif schema.get("type") == "array":
        yield from _blocks(f"{path}[]", schema["items"])


def _section(path: str, block: Schema, paths: Collection[str]) -> str:
    lines = [
        f"## `{path}`",
        "",
        block.get("description", ""),
        "",
        "| field | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for name, field in block["properties"].items():
        shown = f"**`{name}`**" if name in block.get("required", ()) else f"`{name}`"
        default = f"`{_plain(field['default'])}`" if "default" in field else ""
        lines.append(
            f"| {shown} | {_type(f'{path}.{name}', field, paths)} | {default} | {_cell(field.get('description', ''))} |"
        )
    rules = [f"- {rule['message']}" for rule in block.get("x-kubernetes-validations", ())]
    return "\n".join([*lines, *([""] if rules else []), *rules])


def _type(path: str, field: Schema, paths: Collection[str]) -> str:
    if path in paths:
        return f"[block](#{_anchor(path)})"
    if field.get("type") == "array":
        inner = f"{path}[]"
        return (
            f"list of [blocks](#{_anchor(inner)})"
            if inner in paths
            else f"list of {_type(inner, field['items'], paths)}"
        )
    if "enum" in field:
        return ", ".join(f"`{_plain(value)}`" if value else "empty" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if isinstance(field.get("additionalProperties"), dict):
        return f"map to {_type(f'{path}.*', field['additionalProperties'], paths)}"
    return str(field.get("type", "any")) + _bounds(field)


def _bounds(field: Schema) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    above = field.get("exclusiveMinimum", False)
    # Bounds that only limit a number to 64 bits are left out.
    if most is not None and most >= 10**7:
        most = None
    if above and least is not None and most is not None:
        return f", above {_number(least)}, at most {_number(most)}"
    if least is not None and most is not None:
        return f", {_number(least)} to {_number(most)}"
    if most is not None:
        return f", at most {_number(most)}"
    return f", at least {_number(least)}" if least else ""


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _plain(value: Any) -> str:
    """A value as written in a manifest; list items without brackets."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict) or value == []:
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6).strip()
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _anchor(path: str) -> str:
    """The anchor that GitHub generates for a heading."""
    return "".join(letter for letter in path.lower() if letter.isalnum() or letter in "-_")
