"""The demo without a cluster: runs the quickstart with `memtune run` on this machine."""

from __future__ import annotations

import json
import shutil
import sys
import time

from tools.demo.terminal import (
    BUILD,
    INTERRUPTED,
    JOB_FILE,
    MEMTUNE,
    REPORT,
    ROOT,
    DemoError,
    check_recovery,
    memtune,
    open_report,
)

STATE = BUILD / "state"


def main(hint: str) -> None:
    began = time.monotonic()
    # A second demo runs a fresh job instead of showing the first result.
    shutil.rmtree(STATE, ignore_errors=True)
    job, state = str(JOB_FILE.relative_to(ROOT)), str(STATE.relative_to(ROOT))
    memtune("plan", job, "--top", "5")
    memtune("run", job, "--state", state)
    memtune("status", "--state", state)
    memtune("report", "--state", state, "-o", str(REPORT))
    check_recovery(json.loads((STATE / "job.json").read_text())["status"]["attempts"])
    open_report()
    print(
        f"\nThe demo took {time.monotonic() - began:.0f} s after .venv was made. Until `make demo-clean` there are:\n"
        f"  report        {REPORT.as_uri()}\n"
        f"  look further  {MEMTUNE} logs --state {STATE} --run train-1\n"
        f"{hint}"
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except DemoError as error:
        sys.exit(f"demo: {error}")
