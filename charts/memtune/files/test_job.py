"""What `helm test` runs in the operator's image: creates a job, waits for its end, and deletes it again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from kubernetes.aio import client, config

POLL_SECONDS = 2.0


def ending(job: dict[str, Any]) -> str | None:
    """What the job came to, in one line that begins with its phase; None while it goes on."""
    status = job.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return f"{phase}: {status.get('message', '')}"
    for condition in status.get("conditions") or []:
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return f"{phase}, stalled by {condition['reason']}: {condition.get('message', '')}"
    return None


async def follow(api: Any, job: dict[str, Any], seconds: float) -> str:
    """Create the job and wait for its end; it is deleted however this ends."""
    where = ("memtune.dev", "v1alpha1", job["metadata"]["namespace"], "memorytunedjobs")
    created = await api.create_namespaced_custom_object(*where, job)
    name = created["metadata"]["name"]
    print(f"created the job {name}", flush=True)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            found = await api.get_namespaced_custom_object(*where, name)
            if told := ending(found):
                return told
            await asyncio.sleep(POLL_SECONDS)
    finally:
        await api.delete_namespaced_custom_object(*where, name)
    return f"the job has not ended after {seconds:g} s; look at the operator's log"


async def main() -> int:
    """0 if the job succeeded."""
    await config.load_config()
    async with client.ApiClient() as api:
        job, seconds = json.loads(os.environ["TEST_JOB"]), float(os.environ["TEST_SECONDS"])
        told = await follow(client.CustomObjectsApi(api), job, seconds)
    print(told, flush=True)
    return int(not told.startswith("Succeeded"))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
