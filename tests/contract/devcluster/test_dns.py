"""The server behind the cluster's DNS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_SCRIPT = """
import signal, subprocess
from dev.cluster.dns import started

server = started(["sleep", "60"])
server.send_signal(signal.SIGHUP)
try:
    server.wait(0.5)
except subprocess.TimeoutExpired:
    print("it goes on")
server.kill()
"""


def test_a_new_name_does_not_end_a_server_that_has_just_been_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "it goes on\n"
