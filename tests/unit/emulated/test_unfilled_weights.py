from __future__ import annotations

from memtune_runner.emulated.unfilled_weights import UnfilledWeights


class _Storage:
    def __init__(self, size: int) -> None:
        self._size, self._cdata = size, id(self)

    def nbytes(self) -> int:
        return self._size


class _Tensor:
    is_sparse = False

    def __init__(self, storage: _Storage, nbytes: int) -> None:
        self._storage, self.nbytes = storage, nbytes

    def untyped_storage(self) -> _Storage:
        return self._storage


def test_unfilled_memory_counts_while_it_lives() -> None:
    resident_bytes = 100
    unfilled = UnfilledWeights(lambda: resident_bytes)
    first, second = _Storage(1000), _Storage(500)
    unfilled.leave(_Tensor(first, 1000))
    unfilled.leave(_Tensor(second, 500))
    assert unfilled.peak_bytes == 1600
    resident_bytes = 400
    del first  # seen before it goes
    assert unfilled.peak_bytes == 1900
    resident_bytes = 700
    assert unfilled.peak_bytes == 1900  # and 1,200 now
    del second
    assert not unfilled


def test_writing_to_unfilled_memory_ends_its_count_unless_only_a_row() -> None:
    unfilled = UnfilledWeights(lambda: 0)
    storage = _Storage(1000)
    whole, row = _Tensor(storage, 1000), _Tensor(storage, 10)
    unfilled.leave(whole)
    unfilled.written([row])
    assert unfilled.has(whole)
    unfilled.written([whole])
    assert not unfilled.has(whole)
    assert unfilled.peak_bytes == 1000
