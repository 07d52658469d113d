"""Gradients that FSDP2 reduces with the last micro-batch only: the peak of a small Llama, emulated and by formula.

    PYTHONPATH=core:runner:cli:bench python -m memtune_cli.main emulate --ranks 8 -- \\
      .venv-emulated/bin/python bench/emulated_accumulation.py

Prints a line for each choice, in MiB.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import torch
from torch import distributed

from memtune.gpus.gpu import find
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.huggingface import from_hf_config
from memtune.plans.plan import Plan
from memtune.units import MIB
from memtune_runner.emulated import rendezvous

RANKS, LENGTH, MICRO_BATCHES, STEPS = 8, 512, 2, 2
SIZES: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "vocab_size": 8000,
    "tie_word_embeddings": False,
}


def measured(defers: bool, reduce_dtype: torch.dtype) -> int:
    """The peak of a few steps as rank 0."""
    import transformers
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with torch.device("cuda"):
        model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False, **SIZES))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    for unit in (*model.model.layers, model):
        fully_shard(unit, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.ones(1, LENGTH, dtype=torch.long, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        for micro in range(MICRO_BATCHES):
            model.set_requires_gradient_sync(micro == MICRO_BATCHES - 1 or not defers)
            model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cuda.max_memory_allocated()


def predicted(defers: bool, plan: Plan) -> float:
    """The same by formula."""
    workload = Workload(
        from_hf_config({"model_type": "llama", **SIZES}), find("h100-80gb"), plan.global_batch(RANKS), LENGTH,
        gpus_per_node=RANKS, without_autocast=True, drops_outputs=True, in_transformers=True, defers_reduction=defers,
    )  # fmt: skip
    return Predictor(workload).predict(plan).allocated.expected


def main() -> None:
    """Emulate each choice."""
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    rendezvous.install(RANKS)
    torch.cuda.set_device(0)
    distributed.init_process_group("cpu:gloo,cuda:nccl")
    for defers, end, dtype in ((True, "", torch.bfloat16), (True, "-g32", torch.float32), (False, "", torch.bfloat16)):
        found = measured(defers, dtype) / MIB
        by_formula = predicted(defers, Plan.parse(f"bf16-fsdp-none-mb1x{MICRO_BATCHES}{end}")) / MIB
        when = "the last micro-batch" if defers else "each micro-batch"
        print(f"reduced in {dtype} with {when}: {found:.0f}, predicted {by_formula:.0f}", file=sys.stderr)


if __name__ == "__main__":
    main()
