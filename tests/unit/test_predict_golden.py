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
dense bf16-ddp-none-mb1x8 loss 183642346185 210749523921 177975288785 212334651596 3.0221847
dense bf16-z0-sel-mb8x1-foreach loss 175604840055 203535380883 168586213739 205119724413 3.16212946
dense fp16-z1-every4-mb2x4-eager backward 85279515767 103216084089 79215576552 104805022080 4.11701222
dense bf16-z2-full-mb4x2-oopt-g32 loss 28867911782 33160255107 29204859957 34809288096 7.60745272
dense bf16-z3-full-mb8x1-oparam-bk50m loss 23889557924 31820308922 23201803895 33432712570 7.6291152
dense bf16-z3-none-mb2x4-onvme-lion loss 61615574357 82238093248 57373761996 83826155880 32.9492052
dense fp8-fsdp-sel-mb4x2-fl backward 52681863585 67330784671 51401832811 68927061363 2.7807825
dense tf32-fsdpsgo-full-mb1x8-sdpa-foreach backward 47019626069 60809083096 45513148239 62406113309 8.39114804
nodes bf16-fsdphyb-full-mb8x8-oact loss 22531209658 27331017872 24055452310 29109417644 13.7309642
nodes bf16-z1-sel-mb64x1-adamw8bit-exp backward 302663904199 381123863816 251681526974 382805196372 9.9059582
nodes bf16-fsdp-every2-mb4x16-adafactor-foreach backward 9937886656 12529191237 11069924753 14362960387 13.1712473
adapter bf16-ddp-full-mb4x4 loss 8492073959 10189158242 8306314103 10730611850 1.6162812
adapter bf16-z0-none-mb16x1-muon loss 111862257830 144737322400 95821067932 145262416424 1.02345229
"""


@pytest.mark.parametrize("golden", GOLDEN.strip().splitlines(), ids=lambda golden: golden.split()[1])
def test_predictions_do_not_move_unnoticed(golden: str) -> None:
    workload, plan, phase, *numbers = golden.split()
    found = PREDICTORS[workload].predict(Plan.parse(plan))
    bytes_found = [found.allocated.expected, found.reserved.upper, found.device.lower, found.device.upper]
    assert found.peak_phase == phase
    assert [*bytes_found, found.step_seconds.expected] == pytest.approx([float(n) for n in numbers], rel=1e-8)
