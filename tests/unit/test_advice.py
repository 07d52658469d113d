"""What would make a job fit, in words, with a predictor that can be added up by hand."""

from __future__ import annotations

from dataclasses import replace

from memtune.advice import advise
from memtune.gpu import find
from memtune.knobs import Offload, Optimizer
from memtune.model.architecture import Architecture, Kind
from memtune.plan import Plan
from memtune.prediction import Interval, Prediction
from memtune.units import GIB
from memtune.workload import Workload

TINY = Architecture(
    "tiny", Kind.DECODER, hidden_size=64, layers=2, heads=4, kv_heads=4, head_dim=16, ffn_size=256, vocab_size=1000
)
FOUR = Workload(TINY, find("a100-80gb"), global_batch=48, sequence_length=128, gpus_per_node=4)
BOTTOM = Plan.parse("bf16-z3-full-mb1x12-bk50m-exp")


class Shared:
    """400 GiB of states that all GPUs share, a quarter of it saved by 8-bit moments, all of it by offload."""

    def __init__(self, workload: Workload) -> None:
        self._world = workload.world

    def predict(self, plan: Plan) -> Prediction:
        states_gib = 400.0 if plan.optimizer is Optimizer.ADAMW else 300.0
        device_gib = (0 if plan.offload is not Offload.NONE else states_gib / self._world) + plan.micro_batch
        size = Interval(device_gib * GIB, device_gib * GIB, device_gib * GIB)
        rate = Interval(1.0, 1.0, 1.0)
        return Prediction("step", dict, tuple, size, size, size, size, size, rate, rate)


def test_advice_names_knobs_gpus_and_sizes_that_would_do() -> None:
    # 101 GiB are needed, 79.2 are there, of which 6% stay free: 74.4.
    assert advise(FOUR, Shared, BOTTOM, headroom=0.06) == [
        "allow more in tuning.space.offload: bf16-z3-full-mb1x12-oopt-bk50m-exp is predicted at 1.0 GiB",
        # 300 / 4 + 1 = 76 GiB would not leave 6% free, so 8-bit moments are no advice here.
        "add 2 more GPUs of 79.2 GiB: bf16-z3-full-mb1x8-bk50m-exp is predicted at 67.7 GiB",
        "use GPUs with at least 107.4 GiB, such as h200-141gb",
    ]


def test_consent_is_asked_where_it_would_do() -> None:
    advice = advise(replace(FOUR, gpu=find("h100-96gb")), Shared, BOTTOM, headroom=0.06)
    assert "consent to optimizer-8bit: bf16-z3-full-mb1x12-adamw8bit-bk50m-exp is predicted at 76.0 GiB" in advice


def test_more_gpus_than_a_node_has_come_as_more_nodes_that_divide_the_batch() -> None:
    small = replace(FOUR, gpu=find("a100-40gb"))
    advice = advise(small, Shared, BOTTOM, headroom=0.06)
    # 400 / 12 + 1 = 34.3 GiB; 8 GPUs would need 51, and 48 sequences divide among 12.
    assert "add 8 more GPUs of 39.4 GiB: bf16-z3-full-mb1x4-bk50m-exp is predicted at 34.3 GiB" in advice


def test_where_nothing_is_known_that_is_large_enough_only_the_size_is_told() -> None:
    alone = replace(FOUR, gpus_per_node=1, global_batch=1)
    plan = Plan.parse("bf16-z3-full-mb1x1-bk50m-exp-oopt")
    advice = advise(alone, Shared, replace(plan, offload=Offload.NONE), headroom=0.06)
    assert advice[-1] == "use GPUs with at least 426.6 GiB"
