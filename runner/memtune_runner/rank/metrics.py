"""Prometheus metrics of a pod's ranks on one port: each rank writes a file, and the first rank serves them all.

Files, because ranks are separate processes that may die at any moment: their last numbers remain.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from operator import truediv
from pathlib import Path
from typing import Any

from memtune.allocator.counters import fragmentation
from memtune_runner.rank.memory_counters import Reading
from memtune_runner.rank.ranks import Rank
from memtune_runner.vendored import prometheus_client

_LABELS = ("rank", "device")
# From a small model on one GPU to a large model with many micro-batches per step.
STEP_BUCKETS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

_READ = "at the end of the last step or when an allocation failed"
_KEPT = "in the last one to two minutes"
# Every gauge of bytes: its name behind memtune_hbm_, and what it is.
_GAUGES = (
    ("total_bytes", "Memory of the device"),
    ("allocated_bytes", f"Bytes in tensors {_READ}"),
    ("active_bytes", f"Bytes in tensors and in blocks still used by a stream {_READ}"),
    ("reserved_bytes", f"Bytes that the allocator held of the device {_READ}"),
    ("inactive_split_bytes", f"Free bytes that could not be returned to the device {_READ}"),
    ("non_torch_bytes", f"Bytes of the device in use outside the allocator {_READ}"),
    ("largest_free_block_bytes", "Largest unused cached block at the end of the last step"),
    ("step_end_allocated_bytes", "Bytes in tensors at the end of the last step"),
    ("peak_allocated_bytes", f"Peak bytes in tensors {_KEPT}"),
    ("peak_active_bytes", f"Peak active bytes {_KEPT}"),
    ("peak_reserved_bytes", f"Peak reserved bytes {_KEPT}"),
    ("peak_inactive_split_bytes", f"Peak inactive split bytes {_KEPT}"),
)


@dataclass
class Sample:
    """The numbers of one rank, as it writes them for the serving rank."""

    rank: int
    device: str
    plan: str
    bytes: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    ooms: int = 0
    steps: list[int] = field(default_factory=lambda: [0] * (len(STEP_BUCKETS_SECONDS) + 1))
    step_seconds_sum: float = 0.0
    tokens: int = 0

    def stepped(self, seconds: float, tokens: int) -> None:
        """Record a step's duration and its tokens on this rank."""
        self.steps[bisect_left(STEP_BUCKETS_SECONDS, seconds)] += 1
        self.step_seconds_sum += seconds
        self.tokens += tokens

    def read(self, reading: Reading) -> None:
        """Record a reading of the device's counters."""
        counters = {name: value for name, value in asdict(reading).items() if value is not None}
        self.retries, self.ooms = counters.pop("retries"), counters.pop("ooms")
        self.bytes |= counters

    def step_ended(self, reading: Reading, largest_free_block_bytes: int) -> None:
        """Record a reading at the end of a step."""
        self.read(reading)
        self.bytes["step_end_allocated_bytes"] = reading.allocated_bytes
        self.bytes["largest_free_block_bytes"] = largest_free_block_bytes

    def write(self, directory: Path) -> None:
        """Write the numbers for the serving rank, atomically."""
        path = directory / f"metrics-{self.rank}.json"
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(self)), encoding="ascii")
        unfinished.replace(path)


def read_samples(directory: Path) -> list[Sample]:
    """Read the latest numbers of all ranks of this node."""
    return [Sample(**json.loads(path.read_text())) for path in sorted(directory.glob("metrics-*.json"))]


class Collector:
    """Turns the ranks' samples into metrics at each scrape."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterator[Any]:
        """Yield the metrics under their public names."""
        core = prometheus_client().metrics_core
        samples = read_samples(self._directory)
        for name, help_text in _GAUGES:
            gauge = core.GaugeMetricFamily(f"memtune_hbm_{name}", help_text, labels=_LABELS)
            for each in samples:
                if name in each.bytes:
                    gauge.add_metric(_labels(each), each.bytes[name])
            yield gauge
        yield from self._ratios(core, samples)
        yield from self._counters(core, samples)
        yield _step_seconds(core, samples)
        info = core.InfoMetricFamily("memtune_plan", "The plan of this run", labels=_LABELS)
        for each in samples:
            info.add_metric(_labels(each), {"plan": each.plan})
        yield info

    def _ratios(self, core: Any, samples: list[Sample]) -> Iterator[Any]:
        for name, ratio, part, whole, help_text in (
            (
                *("peak_fragmentation_ratio", fragmentation, "peak_active_bytes", "peak_reserved_bytes"),
                "1 - peak active / peak reserved",
            ),
            (
                *("split_ratio", truediv, "inactive_split_bytes", "reserved_bytes"),
                "Inactive split bytes / reserved bytes",
            ),
        ):
            gauge = core.GaugeMetricFamily(f"memtune_hbm_{name}", help_text, labels=_LABELS)
            for each in samples:
                if each.bytes.get(whole):
                    gauge.add_metric(_labels(each), round(ratio(each.bytes[part], each.bytes[whole]), 4))
            yield gauge

    def _counters(self, core: Any, samples: list[Sample]) -> Iterator[Any]:
        for name, key, help_text in (
            ("memtune_allocator_retries", "retries", "Allocations that succeeded only after emptying the cache"),
            ("memtune_allocator_ooms", "ooms", "Failed allocations"),
            ("memtune_tokens", "tokens", "Tokens trained on"),
        ):
            counter = core.CounterMetricFamily(name, help_text, labels=_LABELS)
            for each in samples:
                counter.add_metric(_labels(each), getattr(each, key))
            yield counter


def serve(directory: Path, port: int) -> None:
    """Serve the metrics of this node's ranks. A port in use costs the metrics, never the training."""
    client = prometheus_client()
    registry = client.CollectorRegistry()
    registry.register(Collector(directory))
    try:
        client.start_http_server(port, registry=registry)
    except OSError as error:
        print(f"memtune: no metrics: port {port} cannot be used: {error.strerror}", file=sys.stderr, flush=True)


def serves(rank: Rank) -> bool:
    """Whether this rank serves the metrics of its node."""
    return rank.local_rank == 0


def _step_seconds(core: Any, samples: list[Sample]) -> Any:
    histogram = core.HistogramMetricFamily("memtune_step_seconds", "Duration of an optimizer step", labels=_LABELS)
    for each in samples:
        counts = [sum(each.steps[: number + 1]) for number in range(len(each.steps))]
        bounds = [*(str(bound) for bound in STEP_BUCKETS_SECONDS), "+Inf"]
        buckets = list(zip(bounds, counts, strict=True))
        histogram.add_metric(_labels(each), buckets, sum_value=each.step_seconds_sum)
    return histogram


def _labels(sample: Sample) -> list[str]:
    return [str(sample.rank), sample.device]
