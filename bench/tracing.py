"""The cost of tracing and replaying: processor time and memory for a model of 70B, and for 200 plans of 32 layers."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memtune.gpus.gpu import find
from memtune.memory.replay import Replayer
from memtune.memory.workload import Workload
from memtune.model.huggingface import from_hf_config
from memtune.planning.space import Space, enumerate_plans
from memtune.plans.knobs import Offload, Sharding
from memtune.units import GIB
from memtune.wire.trace import Trace, loads

LENGTH, GPUS = 4096, 8
PLANS = 200
_LLAMA = {"model_type": "llama", "use_cache": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-3-70B": {**_LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
                    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256},
    "Llama-2-7B": {**_LLAMA, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                   "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000},
}  # fmt: skip


def traced(config: dict[str, Any], folder: Path, memory: str) -> tuple[Trace, float, int]:
    """The trace that `memtune trace` makes, with its process's CPU seconds and peak memory."""
    described, output = folder / "config.json", folder / "trace.json"
    described.write_text(json.dumps(config))
    command = [sys.executable, "-m", "memtune_runner", "trace", str(described), "--output", str(output)]
    command += ["--batch", "2", "--sequence-length", str(LENGTH), "--memory", memory, "--time-limit", "1800"]
    process = subprocess.Popen(command)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{config['model_type']}: tracing ended with {status}")
    return loads(output.read_text()), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def replayed(trace: Trace, config: dict[str, Any]) -> tuple[int, float]:
    """The number of replayed plans, and the CPU seconds."""
    workload = Workload(from_hf_config(config), find("h100-80gb"), 256, LENGTH, gpus_per_node=GPUS)
    everything = enumerate_plans(workload, Space(shardings=tuple(Sharding), offloads=(Offload.NONE, Offload.OPTIMIZER)))
    plans = everything[:: max(1, len(everything) // PLANS)][:PLANS]
    replayer = Replayer(trace, gpus_per_node=GPUS)
    started = time.process_time()
    for plan in plans:
        replayer.replay(plan)
    return len(plans), time.process_time() - started


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", default="2Gi", help="the most host memory that a trace may take (2Gi)")
    arguments = parser.parse_args(argv)
    lines = [
        "# What tracing and replaying cost",
        "",
        "Made by `PYTHONPATH=core:runner python bench/tracing.py`",
        f"with Python {platform.python_version()}; seconds of processor time, a trace's with the start of its process.",
        "",
        "| what | seconds | GiB of host memory |",
        "|---|--:|--:|",
    ]
    for name, config in CONFIGS.items():
        with TemporaryDirectory() as folder:
            trace, seconds, most_bytes = traced(config, Path(folder), arguments.memory)
        lines.append(
            f"| trace {name}, {trace.blocks} layers, {trace.total:,} parameters | {seconds:.1f} "
            f"| {most_bytes / GIB:.2f} |"
        )
    count, seconds = replayed(trace, config)
    own_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lines.append(f"| replay {count} plans of {name} on {GPUS} GPUs | {seconds:.1f} | {own_bytes / GIB:.2f} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
