"""What a namespace remembers of its jobs' factories: traces in one ConfigMap, so that the next job starts at once.

Whoever may write ConfigMaps there may write anything into it: what is read is checked as if a pod had said it, and at
worst a prediction is wrong, which the first probe shows. Pure.
"""

from __future__ import annotations

import json
from typing import Any

from memtune_operator.wrapping import Manifest

NAME = "memtune-traces"
API_VERSION, KIND = "v1", "ConfigMap"
# Traces take some 2 kB each; a ConfigMap holds 1 MiB.
_MOST_ENTRIES = 64
_LONGEST_ENTRY = 8192


def recall(kept: Manifest | None, key: str) -> str:
    """The trace under a key, empty if there is none that makes sense."""
    return str(_entry(kept, key).get("trace") or "")


def image_of(kept: Manifest | None, key: str) -> str:
    """What the image was when it was traced."""
    return str(_entry(kept, key).get("imageID") or "")


def remembering(kept: Manifest | None, namespace: str, key: str, trace: str, image_id: str, now: float) -> Manifest:
    """The ConfigMap with one more trace; the oldest go when there is no room for more."""
    metadata = (kept or {}).get("metadata") or {"name": NAME, "namespace": namespace}
    others = {name: text for name, text in _data(kept).items() if name != key and _read(text)}
    newest = sorted(others, key=lambda name: _age(others[name]))[: _MOST_ENTRIES - 1]
    entry = json.dumps({"trace": trace, "imageID": image_id, "at": int(now)})
    data = {**{name: others[name] for name in newest}, key: entry}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "data": data}


def _age(text: str) -> float:
    at = _read(text).get("at")
    return -at if isinstance(at, int) else 0


def _data(kept: Manifest | None) -> dict[str, Any]:
    data = (kept or {}).get("data")
    return data if isinstance(data, dict) else {}


def _entry(kept: Manifest | None, key: str) -> dict[str, Any]:
    return _read(_data(kept).get(key))


def _read(text: Any) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > _LONGEST_ENTRY:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
