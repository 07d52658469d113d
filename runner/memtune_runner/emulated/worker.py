"""The process on the emulated GPU: runs the user's script as Python would, and writes what its memory did."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from memtune_runner.command import accelerate_options, run_target
from memtune_runner.command.command import Kind
from memtune_runner.emulated import outcomes
from memtune_runner.emulated.process import EmulatedProcess, enter_children, other_processes, used_gpus
from memtune_runner.rank.imports import ImportWatch

_PEAKS = {
    "allocated": "allocated_bytes",
    "active": "active_bytes",
    "reserved": "reserved_bytes",
    "requested": "requested_bytes",
}


def main(words: Sequence[str]) -> int:
    """Run one task, which the parent process has written as JSON."""
    task = json.loads(words[0])
    # Processes that the script starts find nothing of ours on their path except the hooks for plausible values.
    os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].partition(os.pathsep)[2]
    enter_children()
    session = Session(task)
    imports = ImportWatch()
    imports.when_imported("torch", session.torch_imported)
    imports.install()
    signal.signal(signal.SIGTERM, _end)
    outcomes.prefer_for_oom_killer()
    code, ending = 0, {}
    try:
        with session.process.active:
            for name, value in accelerate_options.variables(os.environ).items():
                os.environ.setdefault(name, value)
            run_target.run(Kind(task["kind"]), task["target"], task["arguments"])
    except SystemExit as error:
        code, ending = run_target.exit_code(error), {"message": error.code if isinstance(error.code, str) else ""}
    except BaseException as error:
        run_target.show_error(error, __file__)
        code, ending = 1, session.ending_of(error)
    session.tell(ending)
    sys.stdout.flush()
    sys.stderr.flush()
    # Communicators would wait at Python's exit for ranks that do not exist.
    os._exit(code)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


class Session:
    """Everything set up once torch is imported and read at the end."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._torch: ModuleType | None = None
        self._peaks: dict[int, dict[str, int]] = {}
        self.process = EmulatedProcess(task["ranks"])

    def torch_imported(self, torch: ModuleType) -> None:
        """Set up, after the script has imported torch."""
        self._torch = torch
        reset = torch._C._cuda_resetPeakMemoryStats

        def keep_and_reset(device: int) -> None:
            self._keep_peaks()
            reset(device)

        torch._C._cuda_resetPeakMemoryStats = keep_and_reset
        if hasattr(torch._C, "_accelerator_resetPeakStats"):  # torch.accelerator accesses the same peaks in its own way
            torch._C._accelerator_resetPeakStats = keep_and_reset
        if self._task["snapshot"]:
            torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
        self.process.torch_imported(torch)

    def _keep_peaks(self) -> None:
        """Keep the largest peaks when the script resets them."""
        assert self._torch is not None
        if self._torch.cuda.is_initialized():
            for gpu, used in used_gpus().items():
                statistics, before = self._torch.cuda.memory_stats(gpu), self._peaks.get(gpu, {})
                peaks = {name: statistics.get(f"{key}.all.peak", 0) for name, key in _PEAKS.items()}
                self._peaks[gpu] = {
                    **{name: max(before.get(name, 0), peak) for name, peak in peaks.items()}, "driver": used,
                }  # fmt: skip

    def ending_of(self, error: BaseException) -> dict[str, Any]:
        """Describe an exception of the script."""
        out_of_memory = self._torch is not None and isinstance(error, self._torch.OutOfMemoryError)
        message = f"{type(error).__name__}: {error}"
        return {"outOfMemory": out_of_memory, "outcome": outcomes.of_exception(error), "message": message}

    def tell(self, ending: dict[str, Any]) -> None:
        """Write the result for the parent process."""
        told = {
            **ending,
            "measured": self._measured() if self._torch is not None else None,
            "otherProcesses": other_processes(),
        }
        Path(self._task["told"]).write_text(json.dumps(told), encoding="utf-8")

    def _measured(self) -> dict[str, Any] | None:
        assert self._torch is not None
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return None
        self._keep_peaks()
        peaks = self._peaks.values()
        if self._task["snapshot"]:
            cuda.memory._dump_snapshot(self._task["snapshot"])
        statistics = [cuda.memory_stats(gpu) for gpu in range(cuda.device_count())]
        return {
            "peakBytes": {name: max((each[name] for each in peaks), default=0) for name in (*_PEAKS, "driver")},
            "peakBytesByGpu": dict(sorted(self._peaks.items())),
            "endBytes": {
                name: max((each.get(f"{key}.all.current", 0) for each in statistics), default=0)
                for name, key in _PEAKS.items()
            },
            "allocatorRetries": sum(each.get("num_alloc_retries", 0) for each in statistics),
            "outOfMemoryErrors": sum(each.get("num_ooms", 0) for each in statistics),
            **self.process.measured(),
        }
