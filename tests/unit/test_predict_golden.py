"""Predictions do not move unnoticed: whoever changes the model changes these numbers on purpose, and says why.

Each line was printed by the predictor. What the numbers should be is worked out by hand in the tests of the formulas.
"""

import pytest

from memtune.gpu import find
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.plan import Plan
from memtune.predict import Predictor
from memtune.workload import Evaluation, Workload

LLAMA_2_7B = Architecture("llama-2-7b", Kind.DECODER, 4096, 32, 32, 32, 128, 11008, 32000)
H100 = find("h100-80gb")
PREDICTORS = {
    "dense": Predictor(Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8, evaluation=Evaluation(4))),
    "nodes": Predictor(Workload(LLAMA_2_7B, H100, 1024, 2048, nodes=2, gpus_per_node=8, compiled=True)),
    "adapter": Predictor(Workload(LLAMA_2_7B, H100, 16, 1024, adapter=Adapter(16, ("q_proj", "v_proj"), "nf4"))),
}

# Workload, plan, the phase that peaks, then in bytes: allocated, upper of reserved, lower and upper of device; seconds.
GOLDEN = """
dense bf16-ddp-none-mb1x8 loss 183617130029 210722737436 177949260045 212307865323 3.0221847
dense bf16-z0-sel-mb8x1-foreach loss 175579623899 203508626099 168560196061 205092969795 3.16212946
dense fp16-z1-every4-mb2x4-eager backward 75073697038 89625865858 70864559280 91219074877 4.11701222
dense bf16-z2-full-mb4x2-oopt-g32 loss 28842695627 33133370607 29178903077 34782414209 7.60745272
dense bf16-z3-full-mb8x1-oparam-bk50m loss 23864341769 31792093761 23175168659 33404500791 7.6291152
dense bf16-z3-none-mb2x4-onvme-lion loss 61590358202 82209920965 57347148760 83797984053 32.9492052
dense fp8-fsdp-sel-mb4x2-fl backward 52656647429 67302468900 51375041497 68898747030 2.7807825
dense tf32-fsdpsgo-full-mb1x8-sdpa-foreach backward 46994409914 60780808759 45486392264 62377840395 8.39114804
nodes bf16-fsdphyb-full-mb8x8-oact loss 22505993503 27302292549 24028729100 29080729891 13.7309642
nodes bf16-z1-sel-mb64x1-adamw8bit-exp backward 302638688044 381097049991 251657445628 382778382602 9.9059582
nodes bf16-fsdp-every2-mb4x16-adafactor-foreach backward 9912670500 12500639411 11043172514 14334481035 13.1712473
adapter bf16-ddp-full-mb4x4 loss 8466857804 10160547377 8281849522 10702029436 1.6162812
adapter bf16-z0-none-mb16x1-muon loss 111837041675 144709686946 95796289227 145234781005 1.02345229
"""


@pytest.mark.parametrize("golden", GOLDEN.strip().splitlines(), ids=lambda golden: golden.split()[1])
def test_predictions_do_not_move_unnoticed(golden: str) -> None:
    workload, plan, phase, *numbers = golden.split()
    found = PREDICTORS[workload].predict(Plan.parse(plan))
    bytes_found = [found.allocated.expected, found.reserved.upper, found.device.lower, found.device.upper]
    assert found.peak_phase == phase
    assert [*bytes_found, found.step_seconds.expected] == pytest.approx([float(n) for n in numbers], rel=1e-8)
