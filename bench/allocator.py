"""Speed of the allocator model: events per second on the trace of a training run.

    PYTHONPATH=core python bench/allocator.py > bench/results/allocator.md

The model must be fast enough to replay a plan's trace interactively, and to serve the virtual GPU.
"""

from __future__ import annotations

import platform
import time
from itertools import count

from memtune.allocator import AllocatorSettings, Event, replay, surviving_bytes
from memtune.units import KIB, MIB, gib

COMMAND = "PYTHONPATH=core python bench/allocator.py > bench/results/allocator.md"
REPEATS = 5

# A Llama-7B block at micro-batch 1 in bf16 (hidden 4,096, feed-forward 11,008), in bytes per token and in bytes.
HIDDEN, FFN, NORM, LOGITS = 2 * 4096, 2 * 11008, 4, 4 * 32000
KEPT_PER_TOKEN = [HIDDEN, NORM, HIDDEN, HIDDEN, HIDDEN, 128, HIDDEN, FFN, FFN, FFN, NORM, HIDDEN]
TEMPORARY_PER_TOKEN = [2 * HIDDEN, NORM, 1, 1280]
WEIGHT_GRADIENT_BYTES = [4096 * HIDDEN] * 4 + [4096 * FFN] * 3 + [8 * KIB] * 2


class TraceWriter:
    """Writes events, numbering the tensors."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._numbers = count()

    def alloc(self, size_bytes: int) -> int:
        tensor = next(self._numbers)
        self.events.append(Event("alloc", tensor, size_bytes))
        return tensor

    def free(self, *tensors: int) -> None:
        self.events += [Event("free", tensor) for tensor in tensors]

    def temporaries(self, sizes_bytes: list[int]) -> None:
        for size_bytes in sizes_bytes:
            self.free(self.alloc(size_bytes))


def training_trace(layers: int, lengths: list[int]) -> list[Event]:
    """A step per sequence length: forward keeps activations, backward frees them in reverse and leaves gradients."""
    writer = TraceWriter()
    for tokens in lengths:
        kept = [_forward(writer, tokens) for _ in range(layers)]
        writer.temporaries([LOGITS * tokens, LOGITS * tokens])
        gradients = [gradient for layer in reversed(kept) for gradient in _backward(writer, layer, tokens)]
        writer.free(*gradients)
    return writer.events


def _forward(writer: TraceWriter, tokens: int) -> list[int]:
    kept = []
    for per_token in KEPT_PER_TOKEN:
        kept.append(writer.alloc(per_token * tokens))
        writer.temporaries([each * tokens for each in TEMPORARY_PER_TOKEN])
    return kept


def _backward(writer: TraceWriter, kept: list[int], tokens: int) -> list[int]:
    for tensor in reversed(kept):
        writer.temporaries([each * tokens for each in TEMPORARY_PER_TOKEN])
        writer.free(tensor)
    return [writer.alloc(size_bytes) for size_bytes in WEIGHT_GRADIENT_BYTES]


def best_seconds(trace: list[Event], limit_bytes: int | None, settings: AllocatorSettings) -> float:
    """The fastest of several runs in CPU time, which other load on the machine does not affect."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        replay(trace, limit_bytes, settings)
        seconds.append(time.process_time() - start)
    return min(seconds)


def print_row(name: str, trace: list[Event], limit_bytes: int | None, settings: AllocatorSettings) -> None:
    rate = len(trace) / best_seconds(trace, limit_bytes, settings)
    stats = replay(trace, limit_bytes, settings)
    print(
        f"| {name} | {len(trace):,} | {rate:,.0f} | {gib(stats.peak_reserved_bytes)} "
        f"| {stats.fragmentation:.1%} | {stats.retries} |"
    )


def main() -> None:
    same = training_trace(layers=32, lengths=[4096] * 10)
    varying = training_trace(layers=32, lengths=[4096, 1000, 3333, 2048, 3900, 517, 2900, 4096, 1777, 3000])
    tight_bytes = surviving_bytes(varying)
    expandable = AllocatorSettings(expandable_segments=True)
    print(f"# Speed of the allocator model\n\nMade by `{COMMAND}`")
    print(f"with Python {platform.python_version()} on {platform.machine()}; CPU time, best of {REPEATS}.")
    print("Ten steps of 32 Llama-7B blocks each. The target is 200,000 events per second.\n")
    print("| trace and settings | events | events/s | peak reserved | fragmentation | retries |")
    print("|---|---|---|---|---|---|")
    print_row("4,096 tokens in each step", same, None, AllocatorSettings())
    print_row("the same, expandable_segments", same, None, expandable)
    print_row("another length in each step", varying, None, AllocatorSettings())
    print_row("the same, expandable_segments", varying, None, expandable)
    print_row("the same, max_split_size 128 MiB", varying, None, AllocatorSettings(max_split_size_bytes=128 * MIB))
    print_row("the same, smallest limit that survives", varying, tight_bytes, AllocatorSettings())


if __name__ == "__main__":
    main()
