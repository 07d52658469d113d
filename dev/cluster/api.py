"""A minimal Kubernetes API client for the cluster's own parts, with only the standard library."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from dev.cluster.layout import API_PORT, CERTIFICATES, HOST_ADDRESS

_WATCH_SECONDS = 300


class ApiError(Exception):
    """An error response of the API server."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def tcp_answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


class Client:
    def __init__(self, certificates: Path, user: str) -> None:
        self._tls = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        self._tls.load_cert_chain(certificates / f"{user}.crt", certificates / f"{user}.key")

    @contextmanager
    def _connect(self, timeout_seconds: float) -> Iterator[http.client.HTTPSConnection]:
        """A connection for one call; a truncated response counts as a lost connection."""
        connection = http.client.HTTPSConnection(HOST_ADDRESS, API_PORT, context=self._tls, timeout=timeout_seconds)
        try:
            yield connection
        except http.client.HTTPException as error:
            raise ConnectionError(f"the API server's answer was cut off ({error!r})") from error
        finally:
            connection.close()

    def request(self, method: str, path: str, body: object = None, content: str = "application/json") -> Any:
        """Send one request; return parsed JSON, or text."""
        with self._connect(timeout_seconds=10) as connection:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": content, "Accept": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status >= 400:
            raise ApiError(answer.status, text[:500])
        return json.loads(text) if text.startswith("{") else text

    def watch(self, path: str, seconds: int) -> Iterator[bytes]:
        """The events of a watch, until the server ends it after ``seconds``."""
        with self._connect(timeout_seconds=seconds + 10) as connection:
            connection.request("GET", f"{path}?watch=1&timeoutSeconds={seconds}")
            answer = connection.getresponse()
            if answer.status >= 400:
                raise ApiError(answer.status, answer.read().decode()[:500])
            while line := answer.readline():
                yield line

    def follow(self, path: str, changed: threading.Event) -> None:
        """Set the event whenever an object under the path may have changed."""
        threading.Thread(target=self._follow, args=(path, changed), daemon=True).start()

    def _follow(self, path: str, changed: threading.Event) -> None:
        while True:
            try:
                for _ in self.watch(path, _WATCH_SECONDS):
                    changed.set()
            except (OSError, ApiError) as error:
                print(f"watching {path}: {error}; again in 1 s", flush=True)
                time.sleep(1)
            # Changes between two watches may have been missed.
            changed.set()


def client(user: str = "admin") -> Client:
    return Client(CERTIFICATES, user)


def keep_doing(what: Callable[[], None], api: Client, *paths: str) -> NoReturn:
    """Call ``what`` now and whenever an object under these paths may have changed; retry failures after a second."""
    changed = threading.Event()
    changed.set()
    for path in paths:
        api.follow(path, changed)
    while True:
        changed.wait()
        changed.clear()
        try:
            what()
        except (OSError, ApiError) as error:
            print(f"{error}; again in 1 s", flush=True)
            time.sleep(1)
            changed.set()
