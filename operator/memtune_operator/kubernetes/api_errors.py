"""Classifies API server errors: each is exactly one of a few kinds. Pure."""

from __future__ import annotations

import json
from enum import Enum


class Kind(str, Enum):
    """How to react to an error."""

    RETRY = "retry"  # it may succeed later: too many requests, a server error, no connection
    CONFLICT = "conflict"  # the object was changed in the meantime: observe again
    EXISTS = "exists"  # an object of this name exists: adopt it or report it
    ABSENT = "absent"  # the object, or its namespace, is gone
    EXPIRED = "expired"  # the watch fell behind: list again
    REFUSED = "refused"  # it will not succeed unchanged: reported to the user


class RefusalError(Exception):
    """An error of the API server, or a timeout. ``message`` is the server's text, ``status`` the HTTP status."""

    def __init__(self, kind: Kind, message: str, retry_after_seconds: float = 0.0, status: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.status = status


# The API server's message when an admission webhook did not answer.
WEBHOOK_IS_DOWN = "failed calling webhook"
_BY_STATUS = {
    401: Kind.RETRY,
    404: Kind.ABSENT,
    408: Kind.RETRY,
    409: Kind.CONFLICT,
    410: Kind.EXPIRED,
    429: Kind.RETRY,
}


def refusal_of(status: int | None, reason: str, body: str, retry_after: str = "") -> RefusalError:
    """Classify an HTTP error. No status means that there was no response."""
    details = _status_object(body)
    message = str(details.get("message") or reason or body)[:1000]
    kind = _kind(status, str(details.get("reason") or ""), message)
    return RefusalError(kind, message, float(retry_after) if retry_after.isdecimal() else 0.0, status)


def _kind(status: int | None, reason: str, message: str) -> Kind:
    # A missing admission webhook blocks the object until someone repairs it, so it is reported.
    if status == 500 and WEBHOOK_IS_DOWN in message:
        return Kind.REFUSED
    if not status or status >= 500:
        return Kind.RETRY
    if reason == "AlreadyExists":
        return Kind.EXISTS
    # A terminating namespace forbids new objects; its jobs are deleted with it, so nothing is reported.
    if status == 403 and "being terminated" in message:
        return Kind.ABSENT
    # A quota's status is contended, and a new quota has none yet: both resolve within moments.
    if status == 403 and ("try again" in message or "status unknown for quota" in message):
        return Kind.RETRY
    return _BY_STATUS.get(status, Kind.REFUSED)


def _status_object(body: str) -> dict[str, object]:
    """The metav1.Status in the body, which may hold anything if a proxy wrote it."""
    try:
        details = json.loads(body)
    except ValueError:
        return {}
    return details if isinstance(details, dict) else {}
