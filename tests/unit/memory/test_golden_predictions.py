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
dense bf16-ddp-none-mb1x8 loss 182447436623 214796722096 175728768986 216379873028 3.0221847
dense bf16-z0-sel-mb8x1-foreach loss 175604840055 223191466855 170543336951 224771919170 3.16212946
dense fp16-z1-every4-mb2x4-eager backward 84001729106 105772314028 79010556599 107359596271 4.11701222
dense bf16-z2-full-mb4x2-oopt-g32 loss 28867911782 38201978784 31887288395 39827650015 7.60745272
dense bf16-z3-full-mb8x1-oparam-bk50m loss 23889557924 37663598509 27055644071 39269492990 7.6291152
dense bf16-z3-none-mb2x4-onvme-lion loss 59656110956 79178798457 55370538224 80767499265 32.9492052
dense fp8-fsdp-sel-mb4x2-fl backward 52125679245 66189847180 50701665597 67786745165 2.7807825
dense tf32-fsdpsgo-full-mb1x8-sdpa-foreach backward 46746934359 63883495343 47724199035 65479345794 8.39114804
nodes bf16-fsdphyb-full-mb8x8-oact loss 22531209658 30481554150 25772509180 32236768753 13.7309642
nodes bf16-z1-sel-mb64x1-adamw8bit-exp backward 298502229871 381115962509 249647727752 382797233693 9.9059582
nodes bf16-fsdp-every2-mb4x16-adafactor-foreach backward 9634536304 15251453351 12553380543 17040014525 13.1712473
adapter bf16-ddp-full-mb4x4 loss 9017944080 11917308874 9375615655 12454988173 1.6162812
adapter bf16-z0-none-mb16x1-muon loss 95796540744 127783230272 84957126349 128308438309 1.02345229
"""


@pytest.mark.parametrize("golden", GOLDEN.strip().splitlines(), ids=lambda golden: golden.split()[1])
def test_predictions_do_not_move_unnoticed(golden: str) -> None:
    workload, plan, phase, *numbers = golden.split()
    found = PREDICTORS[workload].predict(Plan.parse(plan))
    bytes_found = [found.allocated.expected, found.reserved.upper, found.device.lower, found.device.upper]
    assert found.peak_phase == phase
    assert [*bytes_found, found.step_seconds.expected] == pytest.approx([float(n) for n in numbers], rel=1e-8)
