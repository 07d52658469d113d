"""The sampler for scripts: each rank's share, going on where the run resumes."""

from __future__ import annotations

from itertools import islice

import pytest

from memtune.plans.plan import Plan
from memtune.wire.data_order import sample_at
from memtune.wire.run import RunKind
from memtune_runner.rank.settings import Settings
from memtune_runner.sampler import ResumableSampler


@pytest.mark.parametrize(("samples_done", "start"), [(None, 16), (24, 24), (0, 0)])
def test_all_ranks_together_take_the_next_samples(
    samples_done: int | None, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        plan=Plan.parse("bf16-z2-none-mb2x2"),
        kind=RunKind.TRAIN,
        integration="sdk",
        global_batch=8,
        sequence_length=8,
        gpus_per_node=2,
        resume_samples=16,
    )
    taken = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        taken.append(list(islice(ResumableSampler(100, 3, samples_done, settings), 2)))
    first, second = taken
    seen = [*first[0], *second[0], *first[1], *second[1]]
    assert seen == [sample_at(position, 100, 3) for position in range(start, start + 16)]
