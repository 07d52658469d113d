"""The allocator model against recordings of PyTorch's caching allocator on real GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from allocator_recordings import DifferenceError, Recording, Replay, hold, recordings
from helm_chart import ROOT

from memtune.allocator import AllocatorSettings, CachingAllocator, blocks, caching
from memtune.allocator.blocks import MIN_BLOCK_BYTES, Block, Pool, round_up


@pytest.fixture(scope="module")
def recorded() -> list[Recording]:
    return recordings()


def test_every_allocation_release_and_driver_request_is_the_recorded_one(recorded: list[Recording]) -> None:
    replays = [Replay(recording) for recording in recorded]
    for replay in replays:
        replay.run()
    # There are enough recordings to compare.
    assert len(replays) >= 47
    assert sum(replay.allocations for replay in replays) >= 141_403
    assert sum(replay.driver.granted for replay in replays) >= 8_049
    stats = [replay.allocator.stats() for replay in replays]
    assert sum(each.retries for each in stats) >= 41
    assert sum(each.ooms for each in stats) == 1


def test_the_models_own_addresses_give_the_recorded_peaks(recorded: list[Recording]) -> None:
    """A prediction does not know where the driver places segments."""
    peaks = {recording.name: _peaks(recording) for recording in recorded if not _ran_out(recording)}
    assert len(peaks) >= 45
    assert {name: pair for name, pair in peaks.items() if pair[0] != pair[1]} == {}


def test_rising_addresses_miss_one_recorded_peak_as_documented(recorded: list[Recording]) -> None:
    """After repeated `empty_cache`: of two free blocks of one size, the one at the lower address is then another."""
    peaks = [_peaks(recording, is_rising=True) for recording in recorded if not _ran_out(recording)]
    (missed,) = (found / truth - 1 for truth, found in peaks if found != truth)
    assert f"{missed:+.1%}" == "+7.1%"
    docs = " ".join((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8").split())
    assert "Rising addresses miss one peak by 7.1%, after repeated `empty_cache`" in docs


def _ran_out(recording: Recording) -> bool:
    return any(kind == "o" for kind, *_ in recording.events)


def _peaks(recording: Recording, is_rising: bool = False) -> tuple[int, int]:
    """Return the recorded peak of reserved bytes and the model's, which places segments below each other or above."""
    allocator = CachingAllocator(settings=AllocatorSettings(recording.expandable, oldest_first=is_rising))
    peak = reserved = hold(allocator, recording)
    handles = {address: address for address, *_ in recording.live}
    before = ""
    for kind, *values in recording.events:
        if kind == "a":
            handles[values[0]] = allocator.allocate(values[1], *values[2:])
        elif kind == "f":
            allocator.free(handles.pop(values[0]))
        elif kind == "+":
            reserved += values[1]
            peak = max(peak, reserved)
        elif kind == "-":
            reserved -= values[1]
            if before != "-":
                allocator.empty_cache()
        before = kind
    return peak, allocator.stats().peak_reserved_bytes


def _take_worst_fit(pool: Pool, size: int) -> Block | None:
    found = pool.blocks()[-1:]
    if not found or found[0].size < size:
        return None
    pool.remove(found[0])
    return found[0]


BROKEN_RULES: dict[str, tuple[object, str, Callable[..., object], int]] = {
    "worst fit": (blocks.Pool, "take", _take_worst_fit, 47),
    "no merging": (caching, "merge_free", lambda _block: 0, 44),
    "segments as small as the request": (caching, "segment_bytes", lambda size: round_up(size, MIN_BLOCK_BYTES), 29),
}


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_a_model_with_one_rule_broken_is_noticed(
    rule: str, recorded: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, broken, enough = BROKEN_RULES[rule]
    monkeypatch.setattr(owner, name, broken)
    assert sum(_differs(recording) for recording in recorded) >= enough


def _differs(recording: Recording) -> bool:
    try:
        Replay(recording).run()
    except DifferenceError:
        return True
    return False
