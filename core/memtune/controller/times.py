"""Times as Kubernetes writes them, and as decisions count them: seconds since the epoch. No clock is read here."""

from __future__ import annotations

from datetime import datetime, timezone

# The last second that RFC 3339 can write.
_LATEST = 253_402_300_799


def to_text(seconds: float) -> str:
    """RFC 3339 in whole seconds, as metav1.Time is."""
    bounded = int(min(max(seconds, 0.0), _LATEST)) if seconds == seconds else 0
    return datetime.fromtimestamp(bounded, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_seconds(text: str | None) -> float | None:
    """Seconds since the epoch, or None if the text is no time."""
    try:
        read = datetime.fromisoformat((text or "").replace("Z", "+00:00"))
        return (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None
