"""Predictions never change unnoticed: a change of the model changes these numbers, with a reason.

The predictor printed each line. The tests of the formulas derive the right numbers by hand.
"""

import pytest
from predictors import of_components

from memtune.gpus.gpu import find
from memtune.memory.workload import Evaluation, Workload
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.plans.plan import Plan

LLAMA_2_7B = Architecture("llama-2-7b", Kind.DECODER, 4096, 32, 32, 32, 128, 11008, 32000)
H100 = find("h100-80gb")
PREDICTORS = {
    "dense": of_components(Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8, evaluation=Evaluation(4))),
    "nodes": of_components(Workload(LLAMA_2_7B, H100, 1024, 2048, nodes=2, gpus_per_node=8, compiled=True)),
    "adapter": of_components(Workload(LLAMA_2_7B, H100, 16, 1024, adapter=Adapter(16, ("q_proj", "v_proj"), "nf4"))),
}

# Workload, plan, the phase that peaks, then in bytes: allocated, upper of reserved, lower and upper of device; seconds.
GOLDEN = """
dense bf16-ddp-none-mb1x8 loss 182615544327 216872801926 177600008653 218455903803 3.23768757
dense bf16-z0-sel-mb8x1-foreach loss 176680729362 211723370617 170349032156 213305930556 3.39593774
dense fp16-z1-every4-mb2x4-eager backward 84001729106 107159877718 81377056111 108747733611 4.39048219
dense bf16-z2-full-mb4x2-oopt-g32 loss 29405856436 35373674817 30328595302 37009818112 7.8839736
dense bf16-z3-full-mb8x1-oparam-bk50m loss 24965447232 42544798363 29208222773 44144404382 7.90563607
dense bf16-z3-none-mb2x4-onvme-lion loss 59925083283 80285427034 55958579975 81873800093 33.1647081
dense fp8-fsdp-sel-mb4x2-fl backward 52125679245 66921803605 50958869224 68518020293 2.63922067
dense tf32-fsdpsgo-full-mb1x8-sdpa-foreach backward 46746934359 64990281092 47882595910 66584897437 8.95525063
nodes bf16-fsdphyb-full-mb8x8-oact loss 22394605732 31593149059 25703724018 33335729768 14.4218176
nodes bf16-z1-sel-mb64x1-adamw8bit-exp loss 300285438316 384855979116 245370603716 386537028646 10.4986264
nodes bf16-fsdp-every2-mb4x16-adafactor-foreach backward 9634536304 16246592900 12647207444 18015248141 13.8550875
adapter bf16-ddp-full-mb4x4 loss 9347855450 11628559941 9511257433 12168526937 1.54236119
adapter bf16-z0-none-mb16x1-muon loss 91417671262 115740440789 76562264615 116265732126 1.00753239
"""


@pytest.mark.parametrize("golden", GOLDEN.strip().splitlines(), ids=lambda golden: golden.split()[1])
def test_predictions_do_not_move_unnoticed(golden: str) -> None:
    workload, plan, phase, *numbers = golden.split()
    found = PREDICTORS[workload].predict(Plan.parse(plan))
    bytes_found = [found.allocated.expected, found.reserved.upper, found.device.lower, found.device.upper]
    assert found.peak_phase == phase
    assert [*bytes_found, found.step_seconds.expected] == pytest.approx([float(n) for n in numbers], rel=1e-8)
