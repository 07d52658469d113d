"""One rank of Llama 3.1 8B under FSDP2, as torchtitan trains it: fp32 shards, bf16 compute, every second product saved.

Run by `memtune emulate`, with the CUDA build of torch. The arguments: rows of a micro-batch, tokens of a row, and
`compiled` if each block is.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

WIDTH, LAYERS, HEADS, GROUPS, INNER, VOCABULARY = 4096, 32, 32, 8, 14336, 128256
HEAD = WIDTH // HEADS
STEPS = 3
_aten: Any = torch.ops.aten
_SAVED = {
    _aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def rotated(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary positions, in fp32."""
    pairs = torch.view_as_complex(heads.float().reshape(*heads.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * angles[: heads.shape[1]].view(1, heads.shape[1], 1, -1))
    return turned.flatten(3).type_as(heads)


class Attention(nn.Module):
    """Grouped queries, with keys and values repeated before the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.keys = nn.Linear(WIDTH, GROUPS * HEAD, bias=False)
        self.values = nn.Linear(WIDTH, GROUPS * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        rows, length, _ = hidden.shape
        queries, keys, values = self.queries(hidden), self.keys(hidden), self.values(hidden)
        queries = rotated(queries.view(rows, length, -1, HEAD), angles)
        keys = rotated(keys.view(rows, length, -1, HEAD), angles)
        keys, values = (self._repeated(each.view(rows, length, -1, HEAD)) for each in (keys, values))
        mixed = functional.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
        )
        return self.out(mixed.transpose(1, 2).contiguous().view(rows, length, -1))  # type: ignore[no-any-return]

    @staticmethod
    def _repeated(groups: torch.Tensor) -> torch.Tensor:
        rows, length = groups.shape[:2]
        repeated = groups[:, :, :, None, :].expand(rows, length, GROUPS, HEADS // GROUPS, HEAD)
        return repeated.reshape(rows, length, HEADS, HEAD)


class Block(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.before, self.between = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(self.before(hidden), angles)
        inner = self.between(hidden)
        return hidden + self.down(functional.silu(self.gate(inner)) * self.up(inner))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """The whole model."""

    angles: torch.Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("angles", torch.empty(length, HEAD // 2, dtype=torch.complex64), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens)
        for layer in self.layers:
            hidden = layer(hidden, self.angles)
        return self.head(self.norm(hidden))  # type: ignore[no-any-return]


def selective() -> Any:
    """Save attention, reductions and every second matrix product; recompute the rest."""
    products: Counter[bool] = Counter()

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if operator == _aten.mm.default:
            products[context.is_recompute] += 1
            is_saved = products[context.is_recompute] % 2 == 1
        else:
            is_saved = operator in _SAVED
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def sharded(
    length: int,
    is_compiled: bool,
    checkpointing: str = "selective",
    *,
    is_sharded: bool = True,
    is_fp8: bool = False,
) -> nn.Module:
    """The model on this rank; the last block is not resharded after its forward, as its weights are needed at once.

    ``checkpointing`` is `none`, `selective` or `full`.
    """
    mesh = init_device_mesh("cuda", (distributed.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with torch.device("meta"):
        model = Llama(length)
    if is_fp8:
        from torchao.float8 import convert_to_float8_training  # type: ignore[import-not-found]  # an optional package

        convert_to_float8_training(model, module_filter_fn=lambda _, name: name != "head")
    for place, layer in enumerate(model.layers):
        block: Any = layer
        if checkpointing != "none":
            contexts: Any = {"context_fn": selective} if checkpointing == "selective" else {}
            block = checkpoint_wrapper(layer, preserve_rng_state=False, **contexts)
        if is_compiled:
            block = torch.compile(block, fullgraph=True)
        is_last = place == LAYERS - 1
        if is_sharded:
            fully_shard(block, mesh=mesh, mp_policy=precision, reshard_after_forward=not is_last)
        model.layers[place] = block
    if is_sharded:
        fully_shard(model, mesh=mesh, mp_policy=precision)
    return model.to_empty(device="cuda")


def main(rows: int, length: int, *options: str) -> None:
    """A few steps; the second is the first with the optimizer's states."""
    distributed.init_process_group("nccl")
    model = sharded(length, "compiled" in options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for _ in range(STEPS):
        tokens, labels = (torch.zeros(rows, length, dtype=torch.long, device="cuda") for _ in range(2))
        optimizer.zero_grad()
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            logits = model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
            del logits
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
