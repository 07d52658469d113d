"""The exit codes of `memtune emulate`: by how the command ended, or by why it was not started."""

from __future__ import annotations

COMPLETED, FAILED, OUT_OF_MEMORY, TIME_LIMIT = "completed", "failed", "outOfMemory", "timeLimit"
HOST_MEMORY, MISSING_SYMBOL = "hostMemory", "missingSymbol"
OF_OUTCOME = {COMPLETED: 0, FAILED: 1, OUT_OF_MEMORY: 6, TIME_LIMIT: 7, HOST_MEMORY: 8, MISSING_SYMBOL: 9}
BAD_INPUT, NO_TORCH_OR_COMPILER, UNSUPPORTED_MACHINE, UNKNOWN_GPU, PLAN_REFUSED = 2, 3, 4, 5, 10
