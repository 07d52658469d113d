"""Generates the CustomResourceDefinition from the pydantic types, as a structural schema without references."""

from __future__ import annotations

from typing import Any

from memtune.api.immutable_fields import TRANSITIONS, Transition
from memtune.api.job import GROUP, KIND, PLURAL, VERSION, JobSpec
from memtune.api.rule import INVALID, Rule
from memtune.api.rules import RULES
from memtune.api.status import Status

Schema = dict[str, Any]

# The Device column shows cuda, virtual or emulated, so that a rehearsal never looks like a real run.
_COLUMNS = (
    ("Phase", "string", ".status.phase", "Where the job is on its way."),
    ("Plan", "string", ".status.plan.name", "The plan that runs, or will be launched."),
    ("HBM", "string", ".status.plan.hbm", "Peak over usable memory of the fullest GPU."),
    ("Tok/s", "integer", ".status.plan.tokensPerSecond", "Tokens per second over all GPUs."),
    ("OOMs", "integer", ".status.oomRetries", "Relaunches after an out-of-memory."),
    ("Device", "string", ".spec.resources.device", "cuda, or virtual or emulated for a rehearsal."),
    ("Age", "date", ".metadata.creationTimestamp", "Time since the job was created."),
)
_SPEC_KEYS = {
    "default",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "maximum",
    "maxItems",
    "maxLength",
    "minimum",
    "minItems",
    "minLength",
    "pattern",
    "required",
    "type",
}
_FORMATS = {"integer": "int64", "number": "double"}


def crd() -> dict[str, Any]:
    """The whole CustomResourceDefinition."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": words} for name, kind, path, words in _COLUMNS
        ],
        "schema": {"openAPIV3Schema": object_schema()},
    }
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": KIND.lower(),
        "shortNames": ["mtj"],
        "categories": ["all"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def object_schema() -> Schema:
    """The structural schema of the object, with its rules."""
    root: Schema = {
        "type": "object",
        "description": "A training job that runs on the fastest memory plan that fits its GPUs.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {GROUP}/{VERSION}."},
            "kind": {"type": "string", "description": f"Always {KIND}."},
            # The API server knows metadata, and refuses a schema for it.
            "metadata": {"type": "object"},
            "spec": _structural_of(JobSpec, "The desired job.", _SPEC_KEYS),
            # No defaults in status: the operator must read back exactly what it wrote.
            "status": _structural_of(Status, "The operator's observations and decisions.", _SPEC_KEYS - {"default"}),
        },
    }
    for rule in RULES:
        _add_rule(_block_at(root, rule.owner), rule, rule.path.removeprefix(rule.owner))
    for transition in TRANSITIONS:
        _add_rule(root, transition, f".{transition.path}")
    return root


def _add_rule(block: Schema, rule: Rule | Transition, field_path: str) -> None:
    written = {"rule": rule.cel, "message": rule.message}
    # Kubernetes 1.28 and newer; omit the default reason and the block's own path.
    if rule.reason != INVALID:
        written["reason"] = rule.reason
    if field_path:
        written["fieldPath"] = field_path
    block.setdefault("x-kubernetes-validations", []).append(written)


def _structural_of(model: type[JobSpec] | type[Status], description: str, keys: set[str]) -> Schema:
    schema = model.model_json_schema(by_alias=True)
    return _structural({**schema, "description": description}, schema.get("$defs", {}), keys)


def _structural(node: Schema, defs: Schema, keys: set[str]) -> Schema:
    node = _resolved(node, defs)
    result = {key: value for key, value in node.items() if key in keys or key.startswith("x-kubernetes-")}
    if "const" in node:
        result["enum"] = [node["const"]]
    if node.get("type") in _FORMATS:
        result["format"] = _FORMATS[node["type"]]
    _use_boolean_limits(result)
    if node.get("type") == "array":
        result["items"] = _structural(node["items"], defs, keys)
        result.setdefault("x-kubernetes-list-type", "atomic" if result["items"]["type"] == "object" else "set")
    if "properties" in node:
        result["properties"] = {name: _structural(field, defs, keys) for name, field in node["properties"].items()}
    _put_default(result)
    return result


def _resolved(node: Schema, defs: Schema) -> Schema:
    """The node with its reference resolved and ``or null`` removed; keys beside a reference win."""
    alternatives = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if len(alternatives) > 1:
        raise TypeError(
            f"{node.get('description')!r}: a structural schema has no alternatives; give the field one type"
        )
    beside = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
    if alternatives:
        return _resolved({**alternatives[0], **beside}, defs)
    if "$ref" in node:
        return _resolved({**defs[node["$ref"].removeprefix("#/$defs/")], **beside}, defs)
    return node


def _use_boolean_limits(schema: Schema) -> None:
    # JSON Schema 2020 has an exclusive limit as a number, OpenAPI 3.0 as a flag beside the limit.
    for exclusive, limit in (("exclusiveMaximum", "maximum"), ("exclusiveMinimum", "minimum")):
        if exclusive in schema:
            schema[limit], schema[exclusive] = schema[exclusive], True


def _put_default(schema: Schema) -> None:
    # The API server checks a block's default against the block's rules before it fills in the fields' defaults, so they
    # are spelled out. No default means that the field may be absent.
    if schema.get("default", ...) is None:
        del schema["default"]
    elif "default" in schema and schema["type"] == "object":
        fields = schema["properties"].items()
        schema["default"] = {name: field["default"] for name, field in fields if "default" in field}


def _block_at(root: Schema, path: str) -> Schema:
    block = root
    for part in path.split("."):
        block = block["properties"][part]
    return block
