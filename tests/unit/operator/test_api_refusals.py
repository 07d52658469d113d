"""Each API server error is classified as exactly one kind, in the server's own words."""

from __future__ import annotations

import json

import pytest

from memtune_operator.kubernetes.api_errors import Kind, refusal_of


def answer(message: str, reason: str = "") -> str:
    return json.dumps({"kind": "Status", "message": message, "reason": reason})


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (None, "", Kind.RETRY),
        (401, answer("Unauthorized"), Kind.RETRY),
        (429, answer("too many requests"), Kind.RETRY),
        (500, answer("etcdserver: request timed out"), Kind.RETRY),
        (500, answer('Internal error occurred: failed calling webhook "w": connection refused'), Kind.REFUSED),
        (503, "<html>", Kind.RETRY),
        (404, answer('pods "x" not found', "NotFound"), Kind.ABSENT),
        (409, answer("the object has been modified", "Conflict"), Kind.CONFLICT),
        (409, answer('pods "x" already exists', "AlreadyExists"), Kind.EXISTS),
        (410, answer("too old resource version", "Expired"), Kind.EXPIRED),
        (400, answer("unknown field", "BadRequest"), Kind.REFUSED),
        (422, answer("spec.containers: Required value", "Invalid"), Kind.REFUSED),
        (403, answer("exceeded quota: gpus", "Forbidden"), Kind.REFUSED),
        (403, answer("unable to create new content in namespace x because it is being terminated"), Kind.ABSENT),
        (403, answer("the object has been modified; please apply your changes and try again"), Kind.RETRY),
        (403, answer("status unknown for quota: gpus, resources: requests.nvidia.com/gpu"), Kind.RETRY),
        (413, answer("the object is too large"), Kind.REFUSED),
    ],
)
def test_each_answer_is_one_kind(status: int | None, body: str, kind: Kind) -> None:
    assert refusal_of(status, "", body).kind is kind


def test_the_servers_words_are_kept() -> None:
    assert refusal_of(403, "Forbidden", answer("exceeded quota: gpus")).message == "exceeded quota: gpus"


def test_an_answer_that_is_no_status_is_told_by_its_reason() -> None:
    assert refusal_of(502, "Bad Gateway", "<html>").message == "Bad Gateway"
    assert refusal_of(400, "Bad Request", "[1]").message == "Bad Request"


def test_a_million_characters_are_cut() -> None:
    assert len(refusal_of(400, "", answer("x" * 1_000_000)).message) == 1000


def test_the_time_to_wait_is_read() -> None:
    assert refusal_of(429, "", "", "7").retry_after_seconds == 7.0
    assert refusal_of(429, "", "", "Wed, 21 Oct").retry_after_seconds == 0.0
