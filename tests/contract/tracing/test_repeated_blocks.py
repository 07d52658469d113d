"""Long rows of identical blocks run in part: the trace is that of all blocks, or all blocks run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from memtune.wire.trace import NUMERICS, Trace
from memtune_runner.engine.blocks import repeated_blocks
from memtune_runner.tracing import trace_subject, tracer
from memtune_runner.tracing.factory import Subject
from memtune_runner.tracing.folding import folds_of

ROWS, LENGTH, WIDTH = 2, 4, 16


class Block(nn.Module):
    """Reads what all blocks read; every ``step``-th is wider inside."""

    def __init__(self, place: int, step: int = 1) -> None:
        super().__init__()
        inner = 2 * WIDTH if place % step else WIDTH
        self.place = place
        self.layers = nn.Sequential(nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH))

    def forward(self, hidden: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        seen: torch.Tensor = hidden + self.layers(hidden) * memory
        return seen


class Moody(Block):
    """Built like its neighbours, but every fifth does more."""

    def forward(self, hidden: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden.exp() if self.place % 5 == 4 else hidden, memory)


class Rows(nn.Module):
    """Rows of blocks, one after the other."""

    def __init__(self, *rows: list[Block]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.rows = nn.ModuleDict({f"row{number}": nn.ModuleList(row) for number, row in enumerate(rows)})

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        memory = self.first(hidden)
        for row in self.rows.values():
            for block in row.children():
                hidden = block(hidden, memory)
            memory = hidden
        return hidden.square().mean()


class Keeping(Rows):
    """Uses the output of every block at the end."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        kept = [hidden]
        for block in self.rows["row0"].children():
            kept.append(block(kept[-1], kept[0]))
        return torch.stack(kept).square().mean()


def traced(make: Callable[[], nn.Module], numerics: Sequence[str] = ("autocast",)) -> Trace:
    with FakeTensorMode(allow_non_fake_inputs=True):
        subject = Subject(make(), lambda rows: torch.zeros(rows, LENGTH, WIDTH), lambda model, batch: model(batch))
        return trace_subject(subject, ROWS, LENGTH, numerics)


class Counting(Rows):
    """Knows its number of blocks."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for place in range(9):
            hidden = self.rows.get_submodule(f"row0.{place}")(hidden, hidden)
        return hidden.square().mean()


REGULAR: dict[str, Callable[[], nn.Module]] = {
    "alike": lambda: Rows([Block(place) for place in range(11)]),
    "in turns": lambda: Rows([Block(place, 2) for place in range(15)]),
    "another beginning": lambda: Rows([Block(0), *(Block(place, 99) for place in range(1, 10))]),
    "two rows": lambda: Rows([Block(place) for place in range(9)], [Block(place, 2) for place in range(15)]),
}


@pytest.mark.parametrize("name", REGULAR)
def test_a_row_that_is_run_in_part_is_traced_as_a_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folded = traced(REGULAR[name])
    model = REGULAR[name]()
    assert len(folds_of(model, repeated_blocks(model))) == len(list(model.get_submodule("rows").children()))
    monkeypatch.setattr(tracer, "folds_of", lambda *_model_and_rows: [])
    assert folded == traced(REGULAR[name])


def test_blocks_are_left_out_once_it_is_sure() -> None:
    runs: list[int] = []

    class Counted(Block):
        def forward(self, hidden: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
            runs.append(self.place)
            return super().forward(hidden, memory)

    traced(lambda: Rows([Counted(place) for place in range(20)]), NUMERICS)
    # Both ends and the middle: once all of them, else the first three and the last three.
    assert runs.count(10) == 1
    assert runs.count(0) == runs.count(19) == 8


IRREGULAR: dict[str, Callable[[], nn.Module]] = {
    "other things by place": lambda: Rows([Moody(place) for place in range(12)]),
    "all results used later": lambda: Keeping([Block(place) for place in range(9)]),
    "a number of blocks known": lambda: Counting([Block(place) for place in range(9)]),
}


@pytest.mark.parametrize("name", IRREGULAR)
def test_irregular_blocks_are_traced_in_full(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = traced(IRREGULAR[name])
    monkeypatch.setattr(tracer, "folds_of", lambda *_model_and_rows: [])
    assert told == traced(IRREGULAR[name])


def test_blocks_with_hooks_or_weights_of_their_own_are_not_left_out() -> None:
    hooked = Rows([Block(place) for place in range(9)])
    for block in hooked.rows["row0"].children():
        block.register_forward_hook(lambda *_call: None)
    assert folds_of(hooked, repeated_blocks(hooked)) == []
    frozen = Rows([Block(place) for place in range(9)])
    frozen.rows["row0"].get_submodule("4").requires_grad_(False)
    assert folds_of(frozen, repeated_blocks(frozen)) == []
