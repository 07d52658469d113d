"""What the API server answers when it does not do what was asked: each answer is exactly one of a few kinds. Pure."""

from __future__ import annotations

import json
from enum import Enum


class Kind(str, Enum):
    """What an answer asks of us."""

    RETRY = "retry"  # it may go through later: too many requests, the server's own trouble, no connection
    CONFLICT = "conflict"  # somebody wrote before us: observe again
    EXISTS = "exists"  # an object of this name is there: adopt it or say so
    ABSENT = "absent"  # the object, or its namespace, is gone
    EXPIRED = "expired"  # the watch fell behind: list again
    REFUSED = "refused"  # it never goes through as it is: quoted to the user


class RefusalError(Exception):
    """One answer of the API server, or none in time. ``message`` is in its own words, ``status`` the HTTP one."""

    def __init__(self, kind: Kind, message: str, retry_after_seconds: float = 0.0, status: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.status = status


# How the API server says that an admission webhook did not answer.
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
    """The refusal that an HTTP answer is. No status at all means that there was no answer."""
    told = _status_object(body)
    message = str(told.get("message") or reason or body)[:1000]
    kind = _kind(status, str(told.get("reason") or ""), message)
    return RefusalError(kind, message, float(retry_after) if retry_after.isdecimal() else 0.0, status)


def _kind(status: int | None, reason: str, message: str) -> Kind:
    # An admission webhook that is not there holds up what it was to look at until somebody mends it: that is told.
    if status == 500 and WEBHOOK_IS_DOWN in message:
        return Kind.REFUSED
    if not status or status >= 500:
        return Kind.RETRY
    if reason == "AlreadyExists":
        return Kind.EXISTS
    # A namespace that is going away forbids new objects; its jobs go with it, so there is nobody to tell.
    if status == 403 and "being terminated" in message:
        return Kind.ABSENT
    # A quota's own record is written by many at once, and a new quota has none yet: a moment later it has.
    if status == 403 and ("try again" in message or "status unknown for quota" in message):
        return Kind.RETRY
    return _BY_STATUS.get(status, Kind.REFUSED)


def _status_object(body: str) -> dict[str, object]:
    """The metav1.Status in the body. A proxy in between may have put anything there."""
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
