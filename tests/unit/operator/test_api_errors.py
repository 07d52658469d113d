"""Each API server error is classified as exactly one kind, in the server's own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memtune_operator.api_errors import ErrorKind, api_error


def answer(message: str, reason: str = "", **details: Any) -> str:
    return json.dumps({"kind": "Status", "message": message, "reason": reason, "details": details})


TERMINATING = answer("forbidden", "Forbidden", causes=[{"reason": "NamespaceTerminating"}])


CONTENDED = (
    'pods "x" is forbidden: Operation cannot be fulfilled on resourcequotas "gpus": the object has been modified'
)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (None, "", ErrorKind.RETRY),
        (401, answer("Unauthorized"), ErrorKind.RETRY),
        (429, answer("too many requests"), ErrorKind.RETRY),
        (500, answer("etcdserver: request timed out"), ErrorKind.RETRY),
        (500, answer('Internal error occurred: failed calling webhook "w": connection refused'), ErrorKind.REFUSED),
        (503, "<html>", ErrorKind.RETRY),
        (404, answer('pods "x" not found', "NotFound"), ErrorKind.ABSENT),
        (409, answer("the object has been modified", "Conflict"), ErrorKind.CONFLICT),
        (409, answer('pods "x" already exists', "AlreadyExists"), ErrorKind.EXISTS),
        (410, answer("too old resource version", "Expired"), ErrorKind.EXPIRED),
        (400, answer("unknown field", "BadRequest"), ErrorKind.REFUSED),
        (422, answer("spec.containers: Required value", "Invalid"), ErrorKind.REFUSED),
        (403, answer("exceeded quota: gpus", "Forbidden"), ErrorKind.REFUSED),
        (403, TERMINATING, ErrorKind.ABSENT),
        (403, answer("the team's budget is being terminated", "Forbidden", causes=[{}, "x"]), ErrorKind.REFUSED),
        (422, answer("invalid", "Invalid", causes="of anything"), ErrorKind.REFUSED),
        (403, answer(f"{CONTENDED}; please apply your changes to the latest version and try again"), ErrorKind.RETRY),
        (403, answer("status unknown for quota: gpus, resources: requests.nvidia.com/gpu"), ErrorKind.RETRY),
        (413, answer("the object is too large"), ErrorKind.REFUSED),
    ],
)
def test_each_answer_is_one_kind(status: int | None, body: str, kind: ErrorKind) -> None:
    assert api_error(status, "", body).kind is kind


def test_the_servers_words_are_kept() -> None:
    assert api_error(403, "Forbidden", answer("exceeded quota: gpus")).message == "exceeded quota: gpus"


def test_an_answer_without_a_status_is_reported_by_its_reason() -> None:
    assert api_error(502, "Bad Gateway", "<html>").message == "Bad Gateway"
    assert api_error(400, "Bad Request", "[1]").message == "Bad Request"


def test_a_million_characters_are_cut() -> None:
    assert len(api_error(400, "", answer("x" * 1_000_000)).message) == 1000


def test_the_time_to_wait_is_read() -> None:
    assert api_error(429, "", "", "7").retry_after_seconds == 7.0
    assert api_error(429, "", "", "Wed, 21 Oct").retry_after_seconds == 0.0


def test_the_object_that_an_answer_is_about_is_read() -> None:
    assert api_error(404, "", answer("not found", "NotFound", name="llama")).object_name == "llama"
    assert [api_error(404, "", body).object_name for body in ("404 page not found", '{"details": 5}', answer(""))] == [
        "",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("message", "is_of_cluster"),
    [
        ("exceeded quota: gpus, requested: requests.nvidia.com/gpu=8", True),
        ('failed calling webhook "w": connection refused', True),
        ('admission webhook "w" does not support dry run', True),
        ('admission webhook "w" denied the request: no hostPath', False),
    ],
)
def test_what_a_quota_or_a_broken_webhook_refuses_is_not_the_objects_fault(message: str, is_of_cluster: bool) -> None:
    assert api_error(403, "", answer(message)).is_of_cluster is is_of_cluster
