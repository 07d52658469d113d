"""Classifies API server errors: each is exactly one of a few kinds. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any


class ErrorKind(str, Enum):
    """How to react to an error."""

    RETRY = "retry"  # it may succeed later: too many requests, a server error, no connection
    CONFLICT = "conflict"  # the object was changed in the meantime: observe again
    EXISTS = "exists"  # an object of this name exists: adopt it or report it
    ABSENT = "absent"  # the object, or its namespace, is gone
    EXPIRED = "expired"  # the watch fell behind: list again
    REFUSED = "refused"  # it will not succeed unchanged: reported to the user


# Most causes have a reason or a field in the metav1.Status of the answer. These have neither, so that only the API
# server's sentence tells them from others. No other sentence of it is read. Paths are in k8s.io/apiserver/pkg.
# An InternalError, as are passing troubles: util/webhook/error.go.
_WEBHOOK_IS_DOWN = "failed calling webhook"
# Forbidden, as all that admission denies: admission/plugin/resourcequota/controller.go.
_QUOTA_IS_SPENT, _QUOTA_IS_NEW = "exceeded quota", "status unknown for quota"
# A conflict, which admission may wrap into a Forbidden: registry/generic/registry/store.go.
_QUOTA_IS_CONTENDED = "the object has been modified"
# A BadRequest: admission/plugin/webhook/errors/statuserror.go.
_NO_DRY_RUN = "does not support dry run"


class ApiError(Exception):
    """An error of the API server, or a timeout. ``message`` is the server's text, ``status`` the HTTP status.

    ``object_name`` is the object that the server says it is about; empty if it does not say.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        retry_after_seconds: float = 0.0,
        status: int | None = None,
        object_name: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_seconds = retry_after_seconds
        self.status = status
        self.object_name = object_name

    @property
    def is_of_cluster(self) -> bool:
        """Whether a quota or a webhook refused an object that may be right."""
        return any(words in self.message for words in (_QUOTA_IS_SPENT, _WEBHOOK_IS_DOWN, _NO_DRY_RUN))


# k8s.io/api/core/v1, NamespaceTerminatingCause.
_NAMESPACE_TERMINATING = "NamespaceTerminating"
_BY_STATUS = {
    401: ErrorKind.RETRY,
    404: ErrorKind.ABSENT,
    408: ErrorKind.RETRY,
    409: ErrorKind.CONFLICT,
    410: ErrorKind.EXPIRED,
    429: ErrorKind.RETRY,
}


def api_error(status: int | None, reason: str, body: str, retry_after: str = "") -> ApiError:
    """Classify an HTTP error. No status means that there was no response."""
    found = _status_object(body)
    message = str(found.get("message") or reason or body)
    details = found.get("details")
    details = details if isinstance(details, dict) else {}
    kind = _kind(status, str(found.get("reason") or ""), _causes(details), message)
    seconds = float(retry_after) if retry_after.isdecimal() else 0.0
    return ApiError(kind, message[:1000], seconds, status, str(details.get("name") or ""))


def _kind(status: int | None, reason: str, causes: set[str], message: str) -> ErrorKind:
    # A missing admission webhook blocks the object until someone repairs it, so it is reported.
    if status == 500 and _WEBHOOK_IS_DOWN in message:
        return ErrorKind.REFUSED
    if not status or status >= 500:
        return ErrorKind.RETRY
    if reason == "AlreadyExists":
        return ErrorKind.EXISTS
    # A terminating namespace forbids new objects; its jobs are deleted with it, so nothing is reported.
    if _NAMESPACE_TERMINATING in causes:
        return ErrorKind.ABSENT
    # A quota's status is contended, and a new quota has none yet: both resolve within moments.
    if status == 403 and (_QUOTA_IS_CONTENDED in message or _QUOTA_IS_NEW in message):
        return ErrorKind.RETRY
    return _BY_STATUS.get(status, ErrorKind.REFUSED)


def _causes(details: Mapping[str, Any]) -> set[str]:
    """The reasons of all causes in a Status's details."""
    causes = details.get("causes")
    found = causes if isinstance(causes, list) else []
    return {str(each.get("reason")) for each in found if isinstance(each, dict)}


def _status_object(body: str) -> dict[str, Any]:
    """The metav1.Status in the body, which may hold anything if a proxy wrote it."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
