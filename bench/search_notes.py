"""Texts of the search benchmark's page: the tables of `search.py`, and what each method does."""

from __future__ import annotations

from search_methods import MOST_PROBES
from search_tables import GOOD, HEADROOM

from memtune.api.tuning import Tuning
from memtune.wire.probe_pruning import STEADY_STEPS

PUBLISHED_NOTES = f"""
Each job is one that others ran with several plans and published ([the data](../data/README.md)); a search can
choose only among these plans. Memory, speed and out-of-memories are theirs: MemTune's predictor had no part in
them, but its formulas were chosen with peaks of fms-acceleration in view. Each probe has noise of 0.3% in memory and
1.5% in speed (standard deviations of the logarithm), drawn anew
for each seed.

- [fms-acceleration](https://github.com/foundation-model-stack/fms-acceleration): Mistral 7B and Llama 3 8B, LoRA,
  QLoRA and full fine-tuning, on 1, 2 and 4 A100 80GB: micro-batches 4, 8, 16 and 32, each with and without the
  fused loss.
- [fsdp_qlora](https://github.com/AnswerDotAI/fsdp_qlora): Llama 2 7B, LoRA and QLoRA, on two RTX 3090 or 4090:
  DDP, FSDP and FSDP with offload, at several micro-batches.

Llama 3 8B, full, on 2 GPUs is left out: no published plan leaves {HEADROOM:.0%} of the GPU free. So is full
fine-tuning on 1 GPU, which ran in pure bf16, as no plan of MemTune's does. These tables are small, 3 to 8 plans,
and many of the plans are within 3% of the best one: they test the predicted memory more than the search.
""".strip()

EMULATED_NOTES = """
Every plan of these jobs ran three steps with the real libraries on the emulated GPU
([emulated-grid.jsonl](emulated-grid.jsonl)), so that MemTune's predictor had no part in their memory: stages 0 to 2,
all checkpointings, micro-batches 1 to 16. 0.5 GiB for the contexts of CUDA and NCCL is assumed. The speed is modelled,
with the hidden factors of the section below: nobody published enough plans of one job.
""".strip()

MODELLED_NOTES = """
These are no measurements: the tables are the prediction times hidden factors. They tell of larger spaces than
anybody published: all shardings, checkpointings and micro-batches of a job. Where the predictor orders plans
worse than such factors do, MemTune needs more probes than here.

The factors are of memory for the whole job, for each component and each plan; of speed for the whole job, each
sharding, each checkpointing and each plan; with noise on every probe. A plan whose true memory is above the GPU's
runs out of memory, wherever the prediction saw that edge.

Where MemTune does not find a good plan, it mostly ended by its rule of three probes without gain.
""".strip()

METHOD_NOTES = f"""
A search ends when a probe has measured a plan that keeps {HEADROOM:.0%} of the GPU free and truly reaches
{GOOD:.0%} of the throughput of the best such plan. One that gave up before took for ever ("never"), and medians
and percentiles count it so; "found" is the share of the others. MemTune ends by its own rules and may make
{Tuning().max_probes} probes, its default; the others may make {MOST_PROBES}. A probe costs its start (30 s), its
end (5 s) and the {STEADY_STEPS} shortened steps of a steady probe on every GPU of the job; one that runs out of
memory costs its start and its end. [pruning.md](pruning.md) has probes whose steps are not all alike.

- All methods choose among the plans that the prediction does not rule out, which is a help to the others.
- TPE and GPSampler are Optuna's, with one startup trial; TPE is multivariate. They see every knob
  that the plans differ in, and the micro-batch's place among the sizes. What they name twice, or what is ruled
  out, costs nothing.
- Grid is in the order of nested loops on modelled tables, and in the order of publication on the others.
- DeepSpeed's order is that of deepspeed/autotuning/README.md (github.com/deepspeedai/DeepSpeed), "Autotuning
  Workflow and Scope": stages 0, 1, 2, 3 as far as they may fit, micro-batches in each (here upwards, until memory
  runs out), ended after a stage that is no better than the one before. It chooses nothing else: it is given the
  best plan's checkpointing, loss and offload, and its profiling run is not counted. Where no plan is DeepSpeed's,
  DDP stands for stage 0 and FSDP for stage 3.
- Composer's halving is `device_train_microbatch_size="auto"` (github.com/mosaicml/composer): the largest
  micro-batch, halved until it does not run out of memory. It is given everything else of the best plan, sharding
  too.
""".strip()
