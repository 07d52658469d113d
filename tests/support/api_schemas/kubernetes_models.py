"""Validates objects against the Kubernetes client's models, as strictly as an API server."""

from __future__ import annotations

import re
from typing import Any

from kubernetes import client

SCALARS: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (float, int)}


def validate(value: Any, kind: str, where: str) -> None:
    """Walk ``value`` along the client's models. An unknown field, a wrong type or a missing required field fails."""
    if inner := re.fullmatch(r"(List|Dict)\[(?:str, )?(.+)\]", kind):
        assert isinstance(value, list if inner[1] == "List" else dict), f"{where}: {value!r} is not a {kind}"
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            validate(item, inner[2], f"{where}[{key}]")
    elif kind == "object":  # a number or a string; the client leaves these open
        assert isinstance(value, (str, int)), f"{where}: {value!r} is neither text nor number"
    elif kind in SCALARS:
        assert isinstance(value, SCALARS[kind]), f"{where}: {value!r} is not a {kind}"
        assert kind == "bool" or not isinstance(value, bool), f"{where}: {value!r} is not a {kind}"
    else:
        validate_model(value, getattr(client, kind), where)


def validate_model(value: Any, model: Any, where: str) -> None:
    fields = {wire: model.openapi_types[name] for name, wire in model.attribute_map.items()}
    assert isinstance(value, dict), f"{where}: {value!r} is not a {model.__name__}"
    assert not set(value) - set(fields), f"{where}: {set(value) - set(fields)} unknown to {model.__name__}"
    for name, item in value.items():
        validate(item, fields[name], f"{where}.{name}")
    # The constructor knows the required fields.
    names = {wire: name for name, wire in model.attribute_map.items()}
    model(**{names[wire]: item for wire, item in value.items()})
