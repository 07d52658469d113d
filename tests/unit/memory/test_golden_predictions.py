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
dense bf16-ddp-none-mb1x8 loss 182447436623 218392163660 179330810449 219975325566 3.23768757
dense bf16-z0-sel-mb8x1-foreach loss 175604840055 212000831225 171208975897 213583533145 3.39593774
dense fp16-z1-every4-mb2x4-eager backward 84001729106 110131532957 83210631856 111718774512 4.39048219
dense bf16-z2-full-mb4x2-oopt-g32 loss 28867911782 34909695345 30033060484 36547533044 7.8839736
dense bf16-z3-full-mb8x1-oparam-bk50m loss 23889557924 41610310627 28650761376 43210623202 7.90563607
dense bf16-z3-none-mb2x4-onvme-lion loss 59656110956 78868665569 55003725803 80457321080 33.1647081
dense fp8-fsdp-sel-mb4x2-fl backward 52125679245 65843654888 50304491847 67440466034 2.63922067
dense tf32-fsdpsgo-full-mb1x8-sdpa-foreach backward 46746934359 64456873869 47739406377 66051979961 8.95525063
nodes bf16-fsdphyb-full-mb8x8-oact loss 22531209658 31188031048 25757557511 32935026419 14.4218176
nodes bf16-z1-sel-mb64x1-adamw8bit-exp backward 298502229871 390875567052 244995766878 392556460431 10.4986264
nodes bf16-fsdp-every2-mb4x16-adafactor-foreach backward 9634536304 16326848775 12790923391 18096752419 13.8550875
adapter bf16-ddp-full-mb4x4 loss 9017944080 11250423943 9270055899 11791270194 1.54236119
adapter bf16-z0-none-mb16x1-muon loss 95796540744 121338999211 80169185683 121864242408 1.00753239
"""


@pytest.mark.parametrize("golden", GOLDEN.strip().splitlines(), ids=lambda golden: golden.split()[1])
def test_predictions_do_not_move_unnoticed(golden: str) -> None:
    workload, plan, phase, *numbers = golden.split()
    found = PREDICTORS[workload].predict(Plan.parse(plan))
    bytes_found = [found.allocated.expected, found.reserved.upper, found.device.lower, found.device.upper]
    assert found.peak_phase == phase
    assert [*bytes_found, found.step_seconds.expected] == pytest.approx([float(n) for n in numbers], rel=1e-8)
