"""A soak's verdict: which memory levels off and which does not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from soak_memory import MIB, findings, still_grows, table, trend

# Half an hour, a sample every five seconds.
SAMPLES = 360


def series(mib: Callable[[float], float], noise: float = 0.3, seed: int = 0) -> list[int]:
    """Return memory as a function of the elapsed share of the run, with noise."""
    chance = random.Random(seed)
    return [int((mib(place / SAMPLES) + chance.gauss(0, noise)) * MIB) for place in range(SAMPLES)]


def sawtooth(teeth: float, height: float, phase: float = 0.0) -> Callable[[float], float]:
    return lambda share: 100 + height * ((teeth * share + phase) % 1)


def level(_: float) -> float:
    return 100


SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("mib", "noise"),
    [
        pytest.param(lambda share: 100 + 12 * share, 0.3, id="4 MiB a third"),
        pytest.param(lambda share: 100 + 6 * share, 0.3, id="2 MiB a third"),
        pytest.param(lambda share: 100 + 12 * share, 2.0, id="4 MiB a third in some noise"),
        pytest.param(lambda share: 400 + 60 * share, 10.0, id="20 MiB a third in much noise"),
        pytest.param(lambda share: 100 + max(0, 30 * (share - 2 / 3)), 0.3, id="one that begins late"),
        pytest.param(lambda share: sawtooth(15, 10)(share) + 18 * share, 0.3, id="below a sawtooth"),
        # As the kubelet's, on a node that got a thousand pods in half an hour.
        pytest.param(lambda share: 75 + 12 * share, 0.5, id="kubelet"),
    ],
)
def test_a_leak_is_seen(mib: Callable[[float], float], noise: float, seed: int) -> None:
    assert still_grows(series(mib, noise, seed))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("mib", "noise"),
    [
        pytest.param(level, 0.0, id="nothing at all"),
        pytest.param(lambda share: 24 + 0.5 * share, 0.0, id="a page now and then"),
        pytest.param(level, 3.0, id="noise"),
        pytest.param(lambda share: 100 + 90 * (1 - math.exp(-4 * share)), 0.3, id="a cache that fills"),
        pytest.param(lambda share: 49 + 150 * min(1, 1.8 * share), 3.0, id="one that is full after a while"),
        pytest.param(lambda share: 100 + (5 if share > 0.7 else 0), 0.3, id="a step"),
        *(pytest.param(sawtooth(teeth, 50), 0.3, id=f"{teeth:g} teeth") for teeth in (3, 4.5, 6, 10, 30)),
        *(pytest.param(sawtooth(5, 50, phase / 10), 0.3, id=f"5 teeth from {phase / 10}") for phase in range(10)),
    ],
)
def test_memory_that_levels_off_passes(mib: Callable[[float], float], noise: float, seed: int) -> None:
    assert not still_grows(series(mib, noise, seed))


def test_the_trend_is_given_for_a_third_of_the_run() -> None:
    rise = trend(series(lambda share: 100 + 12 * share, noise=0))
    assert rise.bytes_a_third == pytest.approx(4 * MIB, rel=0.01)
    assert rise.give_or_take_bytes < 0.1 * MIB


def test_too_short_a_run_is_refused() -> None:
    with pytest.raises(ValueError, match="12 samples are too few to judge"):
        still_grows([MIB] * 12)


def test_findings_name_the_part() -> None:
    lasting = series(level)
    wrong = findings(
        {"etcd/1": series(lambda share: 100 + 300 * share), "kubelet/2": lasting, "kubelet/3": lasting[:9]}
    )
    assert [sentence.split()[0] for sentence in wrong] == ["etcd/1", "kubelet/3"]
    assert wrong[0].endswith("grows and does not level off: 100.0 ± 0.3 MiB from one third to the next")
    assert "9 of 360 times" in wrong[1]


def test_the_table_has_a_row_for_each_part() -> None:
    etcd = [MIB] * 8 + [2 * MIB] * 8 + [4 * MIB] * 7 + [9 * MIB]
    rows = table({"etcd/1": etcd, "kubelet/2": [MIB]}).splitlines()
    assert rows[2].startswith("| etcd/1 | 1 | 1 | 2 | 4 | 9 | 9 | ")
    assert rows[3] == "| kubelet/2 | died | | | | | | |"
