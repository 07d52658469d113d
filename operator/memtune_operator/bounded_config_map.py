"""A ConfigMap whose entries are JSON, bounded in size and number.

Anyone who may write ConfigMaps in the namespace may change them: an unreadable entry counts as absent, and readers
validate the rest.
"""

from __future__ import annotations

import json
from typing import Any

from memtune_operator.pods.kinds import Manifest

API_VERSION, KIND = "v1", "ConfigMap"
# A ConfigMap holds 1 MiB.
_MOST_ENTRIES = 64
LONGEST_ENTRY = 8192


def entry(kept: Manifest | None, key: str) -> dict[str, Any]:
    """The entry under a key; empty if it is missing or invalid."""
    return _read(_part(kept, "data").get(key))


def with_entry(kept: Manifest | None, name: str, namespace: str, key: str, new: dict[str, Any], at: int) -> Manifest:
    """The ConfigMap with one more entry; the oldest entries are evicted when it is full."""
    metadata = _part(kept, "metadata") or {"name": name, "namespace": namespace}
    others = {other: text for other, text in _part(kept, "data").items() if other != key and _read(text)}
    newest = sorted(others, key=lambda other: _age(others[other]))[: _MOST_ENTRIES - 1]
    data = {**{other: others[other] for other in newest}, key: json.dumps({**new, "at": at})}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "data": data}


def _age(text: str) -> float:
    at = _read(text).get("at")
    return -at if isinstance(at, int) else 0


def _part(kept: Manifest | None, name: str) -> dict[str, Any]:
    # `memtune run` reads it from a file, which may hold anything as well.
    part = kept.get(name) if isinstance(kept, dict) else None
    return part if isinstance(part, dict) else {}


def _read(text: Any) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > LONGEST_ENTRY:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
