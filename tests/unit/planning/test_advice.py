"""Advice on what would make a job fit, with a predictor that can be added up by hand."""

from __future__ import annotations

import re
from dataclasses import replace

from memtune.gpus.gpu import find
from memtune.memory.prediction import Interval, Prediction
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture, Kind
from memtune.planning.advice import advise
from memtune.planning.space import Space
from memtune.plans.knobs import NO_CHECKPOINTING, Offload, Optimizer, Sharding
from memtune.plans.plan import Plan
from memtune.units import GIB, MIB

TINY = Architecture(
    "tiny", Kind.DECODER, hidden_size=64, layers=2, heads=4, kv_heads=4, head_dim=16, ffn_size=256, vocab_size=1000
)
FOUR = Workload(TINY, find("a100-80gb"), global_batch=48, sequence_length=128, gpus_per_node=4)
BOTTOM = Plan.parse("bf16-z3-full-mb1x12-bk50m-exp")


class Shared:
    """400 GiB of states sharded over all GPUs, a quarter of it saved by 8-bit moments, all of it by offload."""

    def __init__(self, workload: Workload) -> None:
        self._world = workload.world

    def predict(self, plan: Plan) -> Prediction:
        states_gib = 400.0 if plan.optimizer is Optimizer.ADAMW else 300.0
        device_gib = (0 if plan.offload is not Offload.NONE else states_gib / self._world) + plan.micro_batch
        size = Interval(device_gib * GIB, device_gib * GIB, device_gib * GIB)
        rate = Interval(1.0, 1.0, 1.0)
        return Prediction("step", dict, tuple, size, size, size, size, size, size, rate, rate)


def test_advice_names_knobs_gpus_and_sizes_that_would_do() -> None:
    # 101 GiB are needed, 79.2 are there, of which 6% stay free: 74.4.
    assert advise(FOUR, Shared, BOTTOM, 0.06, Space()) == [
        "allow optimizer in tuning.space.offload: bf16-z3-full-mb1x12-oopt-bk50m-exp is predicted to take 1.0 GiB of "
        "each GPU and 11.0 GiB of host memory on each node",
        # 300 / 4 + 1 = 76 GiB would not leave 6% free, so 8-bit moments are no advice here.
        "use 6 GPUs in place of 4: bf16-z3-full-mb1x8-bk50m-exp is predicted to take 67.7 GiB of each GPU",
        "use GPUs with at least 107.4 GiB, such as h200-141gb",
    ]


def test_advice_keeps_to_the_micro_batches_of_the_script_or_says_that_it_does_not() -> None:
    class Activations(Shared):
        def predict(self, plan: Plan) -> Prediction:
            device = Interval(*[20.0 * plan.micro_batch * GIB] * 3)
            rate = Interval(1.0, 1.0, 1.0)
            return Prediction("step", dict, tuple, device, device, device, device, device, device, rate, rate)

    plan, space = Plan.parse("bf16-z3-full-mb4x3-bk50m-exp"), Space(micro_batches=(4,))
    advice = advise(FOUR, Activations, plan, 0.06, space)
    assert advice[0].startswith("allow 3 in tuning.space.microBatch: bf16-z3-full-mb3x4-bk50m-exp is predicted to take")
    # More GPUs do not shrink the script's micro-batch.
    assert not any("GPUs in place of" in sentence for sentence in advice)


def test_a_plan_below_every_micro_batch_of_the_script_keeps_its_own() -> None:
    advice = advise(FOUR, Shared, BOTTOM, 0.06, Space(micro_batches=(4,)))
    assert advice[-1] == "use GPUs with at least 107.4 GiB, such as h200-141gb"


def test_no_smaller_gpu_is_advised_against_measurements() -> None:
    fitting = replace(FOUR, gpu=find("h200-141gb"))
    assert advise(fitting, Shared, BOTTOM, 0.06, Space())[-1] == "use larger GPUs, such as b200-180gb"


def test_advice_names_training_choices_that_would_fit() -> None:
    advice = advise(replace(FOUR, gpu=find("h100-96gb")), Shared, BOTTOM, 0.06, Space())
    told = "bf16-z3-full-mb1x12-adamw8bit-bk50m-exp is predicted to take 76.0 GiB of each GPU"
    assert f"set training.optimizer to adamw-8bit: {told}" in advice


def test_an_optimizer_is_advised_where_the_job_names_it() -> None:
    space = Space(optimizers=(Optimizer.ADAMW, Optimizer.SGD), opened=frozenset({"optimizer"}))
    advice = advise(replace(FOUR, gpu=find("h100-96gb")), Shared, BOTTOM, 0.06, space)
    told = "bf16-z3-full-mb1x12-adamw8bit-bk50m-exp is predicted to take 76.0 GiB of each GPU"
    assert f"allow adamw-8bit in tuning.space.optimizer: {told}" in advice
    fixed = advise(replace(FOUR, gpu=find("h100-96gb")), Shared, BOTTOM, 0.06, space, is_fixed=True)
    assert f"set training.optimizer to adamw-8bit and set tuning.plan to this: {told}" in fixed


def test_more_gpus_than_a_node_has_come_as_more_nodes_that_divide_the_batch() -> None:
    advice = advise(replace(FOUR, gpu=find("a100-40gb")), Shared, BOTTOM, 0.06, Space())
    # 400 / 12 + 1 = 34.3 GiB; 8 GPUs would need 51, and 48 sequences divide among 12.
    told = "bf16-z3-full-mb1x4-bk50m-exp is predicted to take 34.3 GiB of each GPU"
    assert f"use 12 GPUs in place of 4, 4 on each of 3 nodes: {told}" in advice


def test_where_no_gpu_is_large_enough_something_can_be_done_nevertheless() -> None:
    alone = replace(FOUR, gpus_per_node=1, global_batch=1)
    bottom = Plan.parse("bf16-fsdp-full-mb1x1-adamw8bit-oparam")
    told = advise(alone, Endless, bottom, 0.06, Space())
    assert told == [
        f"no GPU that is known here has the 1,089.4 GiB that {bottom} needs; take a smaller model or shorter "
        "sequences, or more GPUs with a training.globalBatchSize that they divide"
    ]


class Endless(Shared):
    """A prediction that no change makes smaller."""

    def predict(self, plan: Plan) -> Prediction:
        size = Interval(1024.0 * GIB, 1024.0 * GIB, 1024.0 * GIB)
        return replace(super().predict(plan), device=size, needed=size)


SEVEN = Architecture("7b", Kind.DECODER, 4096, 32, 32, 32, 128, 11008, 32000)
ON_24 = Workload(SEVEN, find("rtx4090-24gb"), global_batch=64, sequence_length=8192)
SMALLEST = Plan.parse("bf16-z0-none-mb1x64")


def test_a_model_whose_states_are_too_large_could_learn_in_adapters_or_on_more_gpus() -> None:
    told = advise(replace(ON_24, sequence_length=4096), Predictor, SMALLEST, 0.06, Space())
    assert [each.partition(":")[0] for each in told] == [
        "allow optimizer+parameters in tuning.space.offload",
        "if the model is pretrained, train LoRA adapters alone (model.peft, in a template)",
        "use 8 GPUs in place of 1",
        "use GPUs with at least 145.2 GiB, such as b200-180gb",
    ]


def test_sequences_that_are_too_long_could_be_shorter() -> None:
    long = replace(ON_24, gpu=find("a100-80gb"), global_batch=8, sequence_length=131072, gpus_per_node=8)
    told = advise(long, Predictor, Plan.parse("bf16-fsdp-full-mb1x1"), 0.06, Space())
    assert told[0].startswith(
        "shorten training.sequenceLength to 65,536: bf16-fsdp-full-mb1x1 is predicted to take 77.0 "
    )
    alone = advise(
        replace(long, gpus_per_node=1, sequence_length=262144),
        Predictor,
        Plan.parse("bf16-z0-full-mb1x8"),
        0.06,
        Space(),
    )
    both = "shorten training.sequenceLength to 65,536 and allow optimizer+parameters in tuning.space.offload: "
    assert len(alone) == 1
    assert alone[0].startswith(f"{both}bf16-z3-full-mb1x8-oparam is predicted to take")


def test_choices_outside_the_space_are_named_by_field() -> None:
    narrow = Space(shardings=(Sharding.DDP,), checkpointings=(NO_CHECKPOINTING,))
    told = advise(replace(ON_24, gpus_per_node=8), Predictor, Plan.parse("bf16-ddp-none-mb1x8"), 0.06, narrow)
    assert told[0].partition(":")[0] == (
        "allow full in tuning.space.checkpointing and optimizer+parameters in tuning.space.offload and sharding fsdp "
        "in tuning.space.backends"
    )


def test_choices_already_in_the_space_are_no_advice() -> None:
    """A job's own measurements may have ruled out what is predicted to fit."""
    told = advise(
        FOUR, Shared, Plan.parse("bf16-z3-full-mb12x1"), 0.06, Space(offloads=(Offload.NONE, Offload.OPTIMIZER))
    )
    assert told[0].startswith("allow optimizer+parameters in tuning.space.offload: ")
    assert [each for each in told if each.startswith((":", "allow optimizer in"))] == []


def test_a_fixed_plan_is_replaced_and_a_virtual_gpu_is_given_more() -> None:
    fixed = advise(replace(ON_24, gpus_per_node=8), Predictor, Plan.parse("bf16-z3-none-mb8x1"), 0.06, Space(), True)
    assert fixed[0].startswith("set tuning.plan to this: bf16-z3-")
    small = Workload(TINY, find("a10g-24gb").with_memory(2 * MIB), global_batch=4, sequence_length=128, virtual=True)
    told = advise(small, Predictor, Plan.parse("bf16-ddp-full-mb1x4"), 0.06, Space(shardings=(Sharding.DDP,)))
    assert re.fullmatch(r"set resources.gpuMemory to at least \d+ MiB", told[-1])


class Wrong(Shared):
    """Fits by its prediction although it ran out of memory; one GPU has nothing to save by sharding."""

    def predict(self, plan: Plan) -> Prediction:
        size = Interval(GIB, GIB, GIB)
        return replace(super().predict(plan), device=size, needed=size, phase_breakdown=lambda: {"evaluation": size})


def test_choices_that_save_nothing_are_no_advice() -> None:
    narrow, plan = (
        Space(shardings=(Sharding.DDP,), checkpointings=(NO_CHECKPOINTING,)),
        Plan.parse("bf16-ddp-none-mb1x12"),
    )
    for phase in ("", "evaluation"):
        told = advise(replace(FOUR, gpus_per_node=1), Wrong, plan, 0.06, narrow, phase=phase)
        assert [each for each in told if not each.startswith("use larger GPUs")] == []


def test_no_offload_is_advised_that_the_host_cannot_hold() -> None:
    tight = replace(FOUR, host_limit_bytes=2 * MIB)
    roomy = advise(FOUR, Shared, BOTTOM, 0.06, Space())
    assert advise(tight, Shared, BOTTOM, 0.06, Space()) == [
        told for told in roomy if "tuning.space.offload" not in told
    ]
    assert len(roomy) > 1


def test_a_plan_that_only_its_host_is_too_small_for_asks_for_more_host_memory_first() -> None:
    tight = replace(FOUR, host_limit_bytes=2 * MIB)
    offloading = replace(BOTTOM, offload=Offload.OPTIMIZER)
    raised, *rest = advise(tight, Shared, offloading, 0.06, Space())
    # 4 processes of 2 GiB, 8 loader workers of 256 MiB, 1 GiB for NCCL, and next to nothing of so small a model.
    assert raised == f"raise limits.memory of the template to 11.0 GiB, which {offloading} is predicted to need"
    assert rest == advise(tight, Shared, BOTTOM, 0.06, Space())


def test_where_the_same_plan_would_fit_without_offload_that_is_the_advice() -> None:
    tight = replace(FOUR, gpu=find("h200-141gb"), host_limit_bytes=2 * MIB)
    _, advice = advise(tight, Shared, replace(BOTTOM, offload=Offload.OPTIMIZER), 0.06, Space())
    assert advice == f"allow none in tuning.space.offload: {BOTTOM} is predicted to take 101.0 GiB of each GPU"
