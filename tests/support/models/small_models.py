"""Small models, and the training loop that the virtual GPU's truth is taken from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from memtune_runner.tracing.factory import Subject

VOCABULARY = 128


class Blocks(nn.Module):
    """A stem, a row of blocks that may be checkpointed, and a head."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module, checkpointed: bool) -> None:
        super().__init__()
        self.stem, self.blocks, self.head, self.checkpointed = stem, nn.ModuleList(blocks), head, checkpointed

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = _checkpointed(block, hidden) if self.checkpointed else block(hidden)
        return cast(torch.Tensor, self.head(hidden))


def _checkpointed(block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    # The saved state of the random numbers lies in host memory on a GPU too; the profiler would count it here.
    return cast(torch.Tensor, checkpoint(block, hidden, use_reentrant=False, preserve_rng_state=False))


class CausalBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        qkv = self.qkv(self.norm(hidden)).view(batch, length, 3, self.heads, -1).transpose(1, 3)
        scores = (qkv[:, :, 0] @ qkv[:, :, 1].mT).tril()
        mixed = (scores.softmax(-1) @ qkv[:, :, 2]).transpose(1, 2).reshape(batch, length, width)
        return torch.add(hidden, self.out(mixed))


class FusedAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return hidden + mixed.transpose(1, 2).flatten(2)


class Experts(nn.Module):
    """Each token visits one expert: shapes that depend on the data."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = hidden.flatten(0, 1)
        weight, choice = self.gate(tokens).softmax(-1).max(-1)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero().squeeze(-1)
            mixed = mixed.index_add(0, rows, expert(tokens[rows]) * weight[rows, None])
        return hidden + mixed.view_as(hidden)


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.add(hidden + self.base(hidden), self.up(self.down(hidden)))


class Recurrent(nn.Module):
    """A GRU written out step by step, so that its states are tensors of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        state, states = hidden.new_zeros(hidden.shape[0], hidden.shape[2]), []
        for inputs in hidden[:, :6].unbind(1):
            state = self.cell(inputs, state)
            states.append(state)
        return torch.stack(states, 1)


class Case(NamedTuple):
    """One model, its inputs, and whether the count must be exact.

    It cannot be where the CPU's kernels use temporaries (convolutions, group norm, flash attention). Where several
    gradients meet in one tensor, a dispatch mode makes torch hold one gradient more: ``excess_bytes``.
    """

    blocks: Callable[[], list[nn.Module]]
    stem: Callable[[], nn.Module]
    head: Callable[[], nn.Module]
    inputs: Callable[[], torch.Tensor]
    exact: bool = True
    excess_bytes: int = 0


def _tokens() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (4, 32))


def _pixels() -> torch.Tensor:
    return torch.randn(8, 3, 32, 32)


def _text(blocks: Callable[[], list[nn.Module]], exact: bool = True, excess_bytes: int = 0) -> Case:
    def stem() -> nn.Module:
        return nn.Embedding(VOCABULARY, 64)

    return Case(blocks, stem, lambda: nn.Linear(64, VOCABULARY), _tokens, exact, excess_bytes)


def _image(block: Callable[[], nn.Module], exact: bool) -> Case:
    def head() -> nn.Module:
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, VOCABULARY))

    return Case(lambda: [block() for _ in range(3)], lambda: nn.Conv2d(3, 32, 3, padding=1), head, _pixels, exact)


def _encoder_layer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    layer.self_attn.dropout = 0.0  # the virtual GPU attends with dropout as a GPU does, not as the CPU
    return layer


CASES: dict[str, Case] = {
    "perceptron": _text(lambda: [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]),
    "encoder": _text(lambda: [_encoder_layer() for _ in range(3)], exact=False),
    "decoder": _text(lambda: [CausalBlock(64, 4) for _ in range(3)]),
    "fused-attention": _text(lambda: [FusedAttention(64, 4) for _ in range(8)], exact=False),
    "dropout": _text(lambda: [nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Dropout(0.3)) for _ in range(4)]),
    "experts": _text(lambda: [Experts(64, 3) for _ in range(3)], excess_bytes=4 * 32 * 64 * 4),
    "adapter": _text(lambda: [Adapted(64, 4) for _ in range(4)]),
    "recurrent": _text(lambda: [Recurrent(64)]),
    "batch-norm": _image(lambda: nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()), False),
    "group-norm": _image(lambda: nn.Sequential(nn.GroupNorm(4, 32), nn.Tanh(), nn.GroupNorm(8, 32)), False),
}


class Trained(NamedTuple):
    """A model with its optimizer, under whatever wraps them."""

    forward: Callable[[torch.Tensor], torch.Tensor]
    backward: Callable[[torch.Tensor], object]
    step: Callable[[], object]


def alone(model: nn.Module) -> Trained:
    """One rank and plain torch."""
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Trained(model, torch.Tensor.backward, step)


def train(
    case: Case,
    checkpointed: bool,
    steps: int,
    step_ended: Callable[[], None],
    wrap: Callable[[Blocks], Trained] = alone,
) -> None:
    """Build the model and train it, telling the end of each step; everything is gone when it returns."""
    torch.manual_seed(0)
    trained = wrap(Blocks(case.stem(), case.blocks(), case.head(), checkpointed))
    for _ in range(steps):
        loss = trained.forward(case.inputs()).logsumexp(-1).mean()
        trained.backward(loss)
        trained.step()
        del loss
        step_ended()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = functional.gelu(self.up(hidden))
        return torch.add(hidden, self.down(wide))


class Partly(nn.Module):
    """Some weights get no gradient, and some have fewer rows than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(128, 2048)
        self.positions = nn.Parameter(torch.zeros(1, 64, 128))
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.positions
        for number, layer in enumerate(self.layers):
            with torch.set_grad_enabled(number > 0):
                hidden = layer(hidden)
        return hidden.square().mean()


def partly() -> Subject:
    return Subject(Partly(), lambda rows: torch.zeros(rows, 64, 128), lambda model, batch: model(batch))
