"""Traces the steps of published runs on the emulated GPU, each in a fork of this process, after all imports.

    python bench/emulated_steps_run.py FILE ROW:LAYERS [ROW:LAYERS ...]

Run by `memtune emulate` through bench/emulated_steps.py. Each row of bench/data/measured_throughput.csv, with as few
layers as said, adds a line of JSON to FILE: the operations of its second step, or why it could not run.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import emulated_llama as source
import torch
import transformers
from emulated_pair_run import _ENDLESS_BYTES, _join, _settings, tell
from throughput import DATA, Row, read_rows
from torch.nn import functional

from memtune.gpus.operations import Operation
from memtune.plans.knobs import Precision
from memtune_runner.emulated import process
from memtune_runner.emulated.step_operations import StepTrace
from memtune_runner.engine import activation_checkpointing, backend_of, optimizers
from memtune_runner.engine.protocol import Setup

_LIMIT_SECONDS = 900


def trace(row: Row, layers: int) -> list[list[Any]]:
    """The operations of the second step of rank 0, each with how often it occurs."""
    process.resize(_ENDLESS_BYTES)
    if "Kempner" not in row.source:
        torch.backends.cuda.enable_cudnn_sdp(False)  # torch did not take cuDNN's attention before 2026
    _join(row.workload.world)
    stepped = (llama if row.model.gated_ffn else gpt)(row, layers)
    gc.collect()
    stepped()
    watched = StepTrace()
    stepped()
    return folded(sum(watched.stop(), Counter[Operation]()))


def folded(counted: Mapping[Operation, int]) -> list[list[Any]]:
    """Operations with their times, where all of a kind that takes time in proportion are one of average size."""
    groups: dict[Operation, list[tuple[Operation, int]]] = {}
    for each, times in counted.items():
        key = each if each.kind == "product" else each._replace(flops=0, moved=0)
        groups.setdefault(key, []).append((each, times))
    found: list[list[Any]] = []
    for key, members in groups.items():
        times = sum(times for _, times in members)
        flops = round(sum(each.flops * n for each, n in members) / times)
        moved = round(sum(each.moved * n for each, n in members) / times)
        found.append([*key._replace(flops=flops, moved=moved), times])
    return found


def gpt(row: Row, layers: int) -> Callable[[], None]:
    """A step of llm-foundry's model under FSDP: GPT-2 with another activation."""
    of, plan, device = row.model, row.plan, torch.device("cuda", 0)
    config = transformers.GPT2Config(
        n_embd=of.hidden_size, n_layer=layers, n_head=of.heads, n_inner=of.ffn_size, vocab_size=of.vocab_size,
        n_positions=row.workload.sequence_length, activation_function="gelu", use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    with device:
        model = transformers.GPT2LMHeadModel(config).train()
    activation_checkpointing.apply(model, plan.checkpointing)
    setup = Setup(_settings(plan, row.workload.world), device, lambda m: optimizers.build(plan, m, 1e-4), 1.0)
    backend = backend_of(model, setup)

    def step() -> None:
        for micro in range(plan.accumulation):
            backend.begin(micro == plan.accumulation - 1)
            tokens = torch.ones(plan.micro_batch, row.workload.sequence_length, dtype=torch.long, device=device)
            backend.backward(_loss(backend.model(input_ids=tokens).logits, tokens))
        backend.step()

    return step


def llama(row: Row, layers: int) -> Callable[[], None]:
    """A step of bench/emulated_llama.py's model, under FSDP or in bf16 alone, as torchtune trains it."""
    of, plan, is_sharded = row.model, row.plan, row.plan.sharding.backend == "fsdp"
    source.WIDTH, source.LAYERS, source.HEADS, source.GROUPS = of.hidden_size, layers, of.heads, of.kv_heads
    source.INNER, source.VOCABULARY, source.HEAD = of.ffn_size, of.vocab_size, of.head_dim
    model: Any = source.sharded(
        row.workload.sequence_length, row.workload.compiled, plan.checkpointing.mode,
        is_sharded=is_sharded, is_fp8=plan.precision is Precision.FP8,
    )  # fmt: skip
    if not is_sharded:
        model = model.to(torch.bfloat16)
    if of.tied_embeddings:
        model.head.weight = model.tokens.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    loss = torch.compile(_loss) if row.workload.compiled else _loss

    def step() -> None:
        for _ in range(plan.accumulation):
            tokens = torch.zeros(plan.micro_batch, row.workload.sequence_length, dtype=torch.long, device="cuda")
            loss(model(tokens), tokens).backward()
        if is_sharded:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def in_a_fork(row: Row, layers: int, file: Path) -> None:
    """Trace a row in a fork of this process, and add the result to the file."""
    line = {"row": row.id, "layers": layers}
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        if code := os.waitstatus_to_exitcode(status):
            tell(file, {**line, "problem": f"it ended with {code}"})
        return
    signal.alarm(_LIMIT_SECONDS)
    # A driver would not work in a fork; the emulated GPU is memory of the process, and none is allocated yet.
    torch.cuda._is_in_bad_fork = lambda: False
    told: Mapping[str, Any]
    try:
        told = {"operations": trace(row, layers)}
    except BaseException as error:
        traceback.print_exc()
        told = {"problem": f"{type(error).__name__}: {error}"[:300]}
    tell(file, {**line, **told})
    sys.stderr.flush()
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Trace the rows one after the other."""
    warnings.simplefilter("ignore")
    file, *wanted = arguments
    rows = {row.id: row for row in read_rows(DATA)}
    with torch.device("meta"):
        transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1))
    for each in wanted:
        name, _, layers = each.partition(":")
        in_a_fork(rows[name], int(layers), Path(file))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
