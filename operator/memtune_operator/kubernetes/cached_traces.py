"""What a namespace remembers of its jobs' factories: traces in one ConfigMap, so that the next job starts at once.

One that rests on what no template tells, such as code in a volume, is not among them: its job's own pod keeps it.

What is read is checked as if a pod had said it, and at worst a prediction is wrong, which the first probe shows. Pure.
"""

from __future__ import annotations

from memtune_operator.kubernetes.cache_entries import entry, keeping
from memtune_operator.pods.wrapping import Manifest

NAME = "memtune-traces"


def recall(kept: Manifest | None, key: str) -> str:
    """The trace under a key, empty if there is none that makes sense."""
    return str(entry(kept, key).get("trace") or "")


def image_of(kept: Manifest | None, key: str) -> str:
    """What the image was when it was traced."""
    return str(entry(kept, key).get("imageID") or "")


def remembering(kept: Manifest | None, namespace: str, key: str, trace: str, image_id: str, now: float) -> Manifest:
    """The ConfigMap with one more trace; they take some 2 kB each."""
    return keeping(kept, NAME, namespace, key, {"trace": trace, "imageID": image_id}, int(now))
