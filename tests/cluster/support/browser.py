"""Headless Chromium, told what to do through its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import websocket
from pods import eventually

from dev.cluster import packages

# Dashboards are set in Inter; without it the browser takes whatever font it finds.
_PACKAGES = {"chromium": "chromium", "/usr/share/fonts/opentype/inter/Inter-Regular.otf": "fonts-inter"}
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Page:
    """One tab. What goes wrong in it is kept in `errors`."""

    def __init__(self, address: str) -> None:
        self._connection: Any = websocket.create_connection(address, timeout=60, suppress_origin=True)
        self._numbers = count(1)
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str, width: int) -> None:
        """Begin to load a page in a window of this width."""
        self._resize(width, 600)
        self._call("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def photograph(self, file: Path) -> None:
        """The whole page as a PNG, also what is below the window's edge."""
        width, height = self.evaluate("[innerWidth, document.documentElement.scrollHeight]")
        self._resize(width, height)
        # A resized page has been painted when the frame after the next begins.
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._connection.close()

    def _resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (said := json.loads(self._connection.recv())).get("id") != number:
            self._note(said["method"], said["params"])
        assert "error" not in said, f"{method}: {said['error']}"
        result: dict[str, Any] = said["result"]
        return result

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(told["exceptionDetails"]["exception"].get("description", str(told)))
        elif event == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif event == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.errors.append(" ".join(str(each.get("value", each.get("description"))) for each in told["args"]))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser that has never been used, with one tab."""
    packages.provide(_PACKAGES)
    chromium = shutil.which("chromium")
    assert chromium, "packages.provide has installed it"
    with (profile.parent / "chromium.log").open("wb") as log:
        command = [chromium, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        port_file = profile / "DevToolsActivePort"
        eventually(lambda: port_file.is_file() and "\n" in port_file.read_text(), "Chromium to listen")
        page = Page(_tab(int(port_file.read_text().split()[0])))
        yield page
        page.close()
    finally:
        process.terminate()
        process.wait(timeout=30)


def _tab(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
        address: str = next(tab for tab in json.load(answer) if tab["type"] == "page")["webSocketDebuggerUrl"]
    return address
