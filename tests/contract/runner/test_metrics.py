"""A pod's metrics: frozen names and values, and one port for all ranks."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast
from urllib.request import urlopen

import prometheus_client
import pytest

from memtune.plans.plan import Plan
from memtune.wire.report import Device
from memtune.wire.run import RunKind
from memtune_runner.device.statistics import Statistics
from memtune_runner.rank.memory_counters import Reading
from memtune_runner.rank.metrics import Collector, Sample, read_samples, serve
from memtune_runner.rank.ranks import Rank
from memtune_runner.rank.settings import Settings
from memtune_runner.watch.hang import HangLimits, HangRule
from memtune_runner.watch.publish import PEAKS_KEPT_SECONDS, Peaks, Publisher
from memtune_runner.watch.watch import Watch

GOLDEN = Path(__file__).parents[2] / "golden" / "runner-metrics.txt"
READING = Reading(
    total_bytes=1000,
    allocated_bytes=300,
    active_bytes=310,
    reserved_bytes=400,
    inactive_split_bytes=40,
    peak_allocated_bytes=500,
    peak_active_bytes=510,
    peak_reserved_bytes=600,
    peak_inactive_split_bytes=60,
    non_torch_bytes=70,
    retries=2,
    ooms=1,
)


def leave_samples(directory: Path) -> None:
    for number in (0, 1):
        sample = Sample(number, "virtual", "bf16-z2-sel-mb4x8")
        if number == 0:
            sample.step_ended(READING, 90)
        for seconds in (0.04, 0.1, 2.0, 400.0):
            sample.stepped(seconds, 128)
        sample.write(directory)


def exposed(directory: Path) -> str:
    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector(directory))
    return prometheus_client.generate_latest(registry).decode()


def test_names_labels_and_values_are_frozen(tmp_path: Path) -> None:
    leave_samples(tmp_path)
    assert exposed(tmp_path) == GOLDEN.read_text()


def test_a_rank_that_is_just_writing_is_no_hindrance(tmp_path: Path) -> None:
    leave_samples(tmp_path)
    (tmp_path / "metrics-2.part").write_text("{")
    assert [each.rank for each in read_samples(tmp_path)] == [0, 1]


def test_a_peak_is_seen_by_a_scrape_that_comes_a_minute_later() -> None:
    peaks, high = Peaks(), replace(READING, peak_reserved_bytes=900)
    assert peaks.held(high, 3000.0).peak_reserved_bytes == 900
    later = peaks.held(READING, 3000.0 + PEAKS_KEPT_SECONDS)
    assert (later.peak_reserved_bytes, later.peak_active_bytes) == (900, 510)
    assert peaks.held(READING, 3000.0 + 2 * PEAKS_KEPT_SECONDS) == READING
    peaks.held(high, 3000.0 + 2 * PEAKS_KEPT_SECONDS)
    assert peaks.held(READING, 3000.0 + 9 * PEAKS_KEPT_SECONDS) == READING


class OneReading:
    """A device with prescribed readings."""

    device_type = "cpu"

    def __init__(self) -> None:
        self.reading = READING

    def read(self) -> Reading:
        return self.reading

    def largest_free_block_bytes(self) -> int:
        return 90

    def has_expandable_segments(self) -> bool:
        return False

    def reset_peaks(self) -> None:
        """Do nothing: peaks are prescribed, too."""

    def when_out_of_memory(self, noticed: Callable[[int], None]) -> None:
        self.run_out = noticed


def publishing(directory: Path) -> tuple[OneReading, Publisher]:
    plan = Plan.parse("bf16-z2-sel-mb4x8")
    settings = Settings(plan, RunKind.TRAIN, "env", 32, 8, device=Device.VIRTUAL, gpu_memory_bytes=1000)
    watch, device = Watch(settings, 0, None, HangRule(HangLimits())), OneReading()
    watch.attach(cast("Statistics", device))
    return device, Publisher(watch, Rank(0, 0, 1, 1, 0), directory)


def test_the_allocation_that_ends_a_run_is_counted_at_once_and_is_no_end_of_a_step(tmp_path: Path) -> None:
    device, publisher = publishing(tmp_path)
    publisher.read(READING)
    device.reading = replace(READING, ooms=2, allocated_bytes=450, peak_allocated_bytes=550)
    device.run_out(700)
    text = exposed(tmp_path)
    labels = '{device="virtual",rank="0"}'
    for line in (
        f"memtune_allocator_ooms_total{labels} 2.0",
        f"memtune_hbm_allocated_bytes{labels} 450.0",
        f"memtune_hbm_peak_allocated_bytes{labels} 550.0",
        f"memtune_hbm_step_end_allocated_bytes{labels} 300.0",
        f"memtune_hbm_largest_free_block_bytes{labels} 90.0",
    ):
        assert line in text


def test_before_the_first_step_has_ended_an_allocation_that_fails_is_counted_too(tmp_path: Path) -> None:
    device, _ = publishing(tmp_path)
    device.run_out(700)
    assert 'memtune_allocator_ooms_total{device="virtual",rank="0"} 1.0' in exposed(tmp_path)
    assert "memtune_hbm_step_end_allocated_bytes{" not in exposed(tmp_path)


def test_a_disk_that_takes_nothing_costs_the_metrics_and_not_the_training(tmp_path: Path) -> None:
    device, publisher = publishing(tmp_path / "gone")
    publisher.read(READING)
    device.run_out(700)


def test_nothing_yet_is_no_error(tmp_path: Path) -> None:
    assert "memtune_tokens_total{" not in exposed(tmp_path)


def test_one_port_serves_all_ranks_and_a_taken_one_stops_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_samples(tmp_path)
    # In a pod all addresses are served; here loopback suffices.
    on_loopback = partial(prometheus_client.start_http_server, addr="127.0.0.1")
    monkeypatch.setattr(prometheus_client, "start_http_server", on_loopback)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    serve(tmp_path, port)
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        body = answer.read().decode()
    assert 'memtune_tokens_total{device="virtual",rank="1"} 512.0' in body
    serve(tmp_path, port)
    assert f"no metrics: port {port} cannot be used" in capsys.readouterr().err


def test_only_the_first_rank_of_a_node_serves() -> None:
    from memtune_runner.rank.metrics import serves

    assert [serves(Rank(2 + local, local, 4, 2, 1)) for local in (0, 1)] == [True, False]
