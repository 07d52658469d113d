"""Entry point of `make demo`: selects a way, announces it, prepares .venv and runs it; `clean` removes demos."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tools.demo.terminal import BUILD, INTERRUPTED, KIND_CLUSTER, KIND_MADE, ROOT, DemoError, call
from tools.demo.ways import WAYS, announcement, choose, lacks, registry


def demo(asked: str) -> int:
    """Run the demo; return its exit code."""
    name, hint = choose(asked)
    if name == "current":
        registry(os.environ)
    print(announcement(name, os.environ), flush=True)
    way = WAYS[name]
    _at_once(("tools/env.sh", way.environment), way.meanwhile)
    words = ("tools.demo.local", hint) if name == "none" else ("tools.demo.on_cluster", name)
    return subprocess.run([".venv/bin/python", "-m", *words], cwd=ROOT, check=False).returncode


def clean(asked: str) -> int:
    """Remove what demos left: of the named way, or everything on this machine."""
    if asked:
        name, _ = choose(asked)
        _ENDS[name]()
        return 0
    if KIND_MADE.exists() and not lacks("kind"):
        _end_kind()
    if not lacks("devcluster"):
        _end_devcluster()
    _end_files()
    return 0


def _end_current() -> None:
    call("tools/env.sh", "demo")
    call(".venv/bin/python", "-m", "tools.demo.on_cluster", "current", "clean")


def _end_kind() -> None:
    call("kind", "delete", "cluster", "--name", KIND_CLUSTER)
    KIND_MADE.unlink(missing_ok=True)


def _end_devcluster() -> None:
    call(sys.executable, "-m", "dev.cluster", "down")


def _end_files() -> None:
    shutil.rmtree(BUILD, ignore_errors=True)


_ENDS = {"current": _end_current, "kind": _end_kind, "devcluster": _end_devcluster, "none": _end_files}


def _at_once(*commands: tuple[str, ...]) -> None:
    running = {command: subprocess.Popen(command, cwd=ROOT) for command in commands if command}
    codes = {command: process.wait() for command, process in running.items()}
    if failed := [f"`{' '.join(command)}` ended with exit code {code}" for command, code in codes.items() if code]:
        raise DemoError("; ".join(failed))


def main() -> int:
    # Names a cluster for the tests; the demo uses CLUSTER.
    os.environ.pop("MEMTUNE_KUBECONFIG", None)
    asked = os.environ.get("CLUSTER", "")
    try:
        return clean(asked) if sys.argv[1:] == ["clean"] else demo(asked)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; run `make demo` again, or `make demo-clean`", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
