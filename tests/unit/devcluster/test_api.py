"""A truncated answer of the API server counts as a lost connection, which can be retried."""

from __future__ import annotations

import http.client
import io
import ssl
import threading

import pytest

from dev.cluster.api import Client

_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_ANSWERS = {
    "within a chunk": _HEAD + b'8\r\n{"a":1}\n\r\nff\r\n{"b"',
    "within a chunk's length": _HEAD + b'8\r\n{"a":1}\n\r\nf',
    "before the head": b"",
    "within the head": b"HTT",
}


class _Socket:
    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def sendall(self, _: bytes) -> None:
        """Ignore the request."""

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._answer))

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture(params=list(_ANSWERS.values()), ids=list(_ANSWERS))
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Client:
    class Connection(http.client.HTTPConnection):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__("api")

        def connect(self) -> None:
            self.sock = _Socket(request.param)

    monkeypatch.setattr(http.client, "HTTPSConnection", Connection)
    cut = Client.__new__(Client)
    cut._tls = ssl.create_default_context()
    return cut


def test_an_answer_that_is_cut_off_is_a_lost_connection(client: Client) -> None:
    with pytest.raises(ConnectionError):
        client.request("GET", "/api/v1/pods")


def test_a_watch_that_is_cut_off_is_a_lost_connection(client: Client) -> None:
    with pytest.raises(ConnectionError):
        list(client.watch("/api/v1/pods", 1))


def test_a_broken_watch_is_restarted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class EnoughError(Exception):
        pass

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise EnoughError

    monkeypatch.setattr("time.sleep", wait)
    with pytest.raises(EnoughError):
        client._follow("/api/v1/pods", threading.Event())
