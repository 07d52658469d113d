from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from memtune_runner.emulated import saves
from memtune_runner.rank.imports import ImportWatch
from memtune_runner.rank.patches import Patches

_LARGE_BYTES = 64 << 20


@pytest.fixture
def safetensors() -> Iterator[ModuleType]:
    import safetensors.torch

    patches = Patches()
    saves.leave_holes(torch, ImportWatch(), patches)
    yield safetensors.torch
    patches.undo()


@pytest.mark.usefixtures("safetensors")
@pytest.mark.parametrize("opens", [False, True])
def test_torch_saves_small_tensors_and_holes_of_the_size_of_large_ones(opens: bool, tmp_path: Path) -> None:
    file, state = tmp_path / "state.pt", torch.get_rng_state()
    saved = {"large": torch.ones(_LARGE_BYTES // 4), "state": state, "step": 7}
    if opens:
        with file.open("wb") as stream:
            torch.save(saved, stream)
    else:
        torch.save(saved, file)
    assert file.stat().st_size > _LARGE_BYTES
    assert file.stat().st_blocks * 512 < _LARGE_BYTES // 8
    loaded = torch.load(file)
    assert loaded["large"].shape == (_LARGE_BYTES // 4,)
    assert (loaded["state"].equal(state), loaded["step"]) == (True, 7)


class _Paused:
    """Stops in the middle of its save."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage = storage
        self.is_reached, self.may_end = Event(), Event()
        self.copied = 0

    def __reduce__(self) -> tuple[type[list[int]], tuple[()]]:
        self.is_reached.set()
        self.may_end.wait(20)
        self.copied = self._storage.cpu().data_ptr()
        return list, ()


@pytest.mark.usefixtures("safetensors")
def test_only_a_thread_that_saves_gets_empty_copies_and_only_while_it_does(tmp_path: Path) -> None:
    storage = torch.ones(_LARGE_BYTES // 4).untyped_storage()  # too long for the message of an assertion
    here = storage.data_ptr()
    saved = [_Paused(storage) for _ in range(2)]
    threads = [Thread(target=torch.save, args=(each, tmp_path / f"{n}.pt")) for n, each in enumerate(saved)]
    for each, thread in zip(saved, threads, strict=True):
        thread.start()
        assert each.is_reached.wait(20)
    copied = storage.cpu().data_ptr()
    assert copied == here
    for each, thread in zip(saved, threads, strict=True):  # the first ends first
        each.may_end.set()
        thread.join()
        assert each.copied not in (0, here)
        copied = storage.cpu().data_ptr()
        assert copied == here


def test_safetensors_of_full_size_are_loaded_with_the_small_ones(safetensors: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    small, large = torch.arange(5, dtype=torch.bfloat16), torch.ones(1024, _LARGE_BYTES // 2048, dtype=torch.float16)
    safetensors.save_file({"a": small, "b": large, "c": small + 1}, file, metadata={"format": "pt"})
    assert file.stat().st_blocks * 512 < _LARGE_BYTES // 8
    loaded = load_file(file)
    assert {name: (each.shape, each.dtype) for name, each in loaded.items()} == {
        "a": (small.shape, small.dtype), "b": (large.shape, large.dtype), "c": (small.shape, small.dtype),
    }  # fmt: skip
    assert loaded["a"].equal(small)
    assert loaded["c"].equal(small + 1)
