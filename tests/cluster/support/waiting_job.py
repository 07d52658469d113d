"""A job without torch, whose one attempt trains for as long as a test wants."""

from __future__ import annotations

from typing import Any

from operator_process import Jobs
from pods import IMAGE, Cluster, eventually

_END = "/tmp/end"


class WaitingJob:
    """Its pod waits until it is told to end. Mode Fixed launches it without a probe."""

    def __init__(self, cluster: Cluster, jobs: Jobs, namespace: str, name: str = "steady") -> None:
        self.name = name
        self._cluster = cluster
        self._jobs = jobs
        self._namespace = namespace

    def apply(self, launcher: str = "Pods", **pod: Any) -> None:
        """Create it; ``pod`` is what its pod is asked for beside its container."""
        self._jobs.apply(self._manifest(launcher, pod))

    def run(self) -> None:
        """Create it and wait until its pod runs and the operator has said so."""
        self.apply()
        self._jobs.wait_for(self.name, "Running", seconds=120)

    def life(self) -> tuple[str, str, dict[str, Any]]:
        """Its pod, and all that is written about it. Equal lives mean that it noticed nothing."""
        pod = self._cluster.read(self._namespace, self._pod)
        assert (pod.status.phase, pod.metadata.deletion_timestamp) == ("Running", None)
        job = self._jobs.read(self.name)
        return pod.metadata.uid, job["metadata"]["resourceVersion"], job["status"]

    def end(self) -> dict[str, Any]:
        """Let it end, and wait until the operator has seen it: the last status."""
        code, _ = self._cluster.execute(self._namespace, self._pod, ["touch", _END])
        assert code == 0
        return self._jobs.wait_for(self.name, "Succeeded", "Failed", seconds=120)

    def delete(self) -> None:
        """Delete it, and wait until its pods have gone with it."""
        self._jobs.delete(self.name)
        eventually(lambda: self._cluster.gone(self._namespace, self._pod), "the job's pod to go with it")

    @property
    def _pod(self) -> str:
        return f"{self.name}-train-1-0"

    def _manifest(self, launcher: str, pod: dict[str, Any]) -> dict[str, Any]:
        trainer = {
            "name": "trainer",
            "image": IMAGE,
            "command": ["sh", "-c", f"until test -e {_END}; do sleep 0.2; done"],
        }
        return {
            "apiVersion": "memtune.dev/v1alpha1",
            "kind": "MemoryTunedJob",
            "metadata": {"name": self.name},
            "spec": {
                "model": {
                    "architecture": {"hiddenSize": 64, "layers": 2, "heads": 4, "ffnSize": 128, "vocabSize": 512}
                },
                "training": {"globalBatchSize": 4, "sequenceLength": 32, "attention": "sdpa"},
                "resources": {"gpusPerNode": 1, "gpuMemory": "4Gi", "device": "virtual"},
                "tuning": {"mode": "Fixed", "plan": "fp32-ddp-none-mb4x1-sdpa"},
                "launcher": launcher,
                "template": {"spec": {"containers": [trainer], "terminationGracePeriodSeconds": 0, **pod}},
            },
        }
