"""The cases every tutorial uses must come out right: what fits where, and what cannot."""

from memtune.gpu import find
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.plan import Plan
from memtune.predict import Predictor
from memtune.units import GIB
from memtune.workload import Workload

GPT2_LARGE = Architecture(
    "gpt2-large", Kind.DECODER, 1280, 36, 20, 20, 64, 5120, 50257,
    gated_ffn=False, rms_norm=False, tied_embeddings=True, hidden_dropout=0.1, attention_dropout=0.1,
    qkv_bias=True, attention_output_bias=True, ffn_bias=True, position_count=1024,
)  # fmt: skip
LLAMA_2_7B = Architecture("llama-2-7b", Kind.DECODER, 4096, 32, 32, 32, 128, 11008, 32000)
LLAMA_3_70B = Architecture("llama-3-70b", Kind.DECODER, 8192, 80, 64, 8, 128, 28672, 128256)
H100 = find("h100-80gb")


def _device(workload: Workload, plan: str) -> float:
    return Predictor(workload).predict(Plan.parse(plan)).device.expected


def test_gpt2_large_full_fine_tuning_fits_one_80gb_gpu_but_not_a_16gb_one() -> None:
    predicted = Predictor(Workload(GPT2_LARGE, H100, 4, 1024)).predict(Plan.parse("bf16-ddp-none-mb4x1"))
    # 774,030,080 parameters x (4 weights + 8 moments) = 9.29e9 bytes before any activation.
    assert predicted.device.lower > 774_030_080 * 12
    assert predicted.fits(H100.usable_bytes, 0.06)
    assert predicted.cannot_fit(find("t4-16gb").usable_bytes)


def test_llama_2_7b_with_adamw_does_not_fit_one_80gb_gpu() -> None:
    # 6,738,415,616 parameters x 16 bytes = 107.8e9 bytes of states alone.
    predicted = Predictor(Workload(LLAMA_2_7B, H100, 8, 4096)).predict(Plan.parse("bf16-z0-full-mb1x8"))
    assert predicted.device.lower > 107.8e9
    assert predicted.cannot_fit(H100.usable_bytes)


def test_llama_2_7b_fits_eight_gpus_with_zero_3() -> None:
    predicted = Predictor(Workload(LLAMA_2_7B, H100, 64, 4096, gpus_per_node=8)).predict(
        Plan.parse("bf16-z3-full-mb1x8")
    )
    assert predicted.fits(H100.usable_bytes, 0.06)


def test_llama_3_70b_needs_offload_on_eight_80gb_gpus() -> None:
    workload = Workload(LLAMA_3_70B, H100, 64, 4096, gpus_per_node=8)
    predictor = Predictor(workload)
    # 70.55e9 parameters x 16 bytes / 8 ranks = 141e9 bytes a rank.
    assert predictor.predict(Plan.parse("bf16-z3-full-mb1x8")).cannot_fit(H100.usable_bytes)
    assert predictor.predict(Plan.parse("bf16-z3-full-mb1x8-oparam")).fits(H100.usable_bytes, 0.06)


def test_llama_3_70b_qlora_fits_one_80gb_gpu() -> None:
    adapter = Adapter(16, ("q_proj", "v_proj"), "nf4")
    workload = Workload(LLAMA_3_70B, H100, 8, 2048, adapter=adapter)
    predicted = Predictor(workload).predict(Plan.parse("bf16-ddp-full-mb1x8"))
    # 68.5e9 quantized weights x 0.5625 bytes + 2.1e9 of embedding and head x 2 bytes = 42.7e9, and on top
    # 80 hidden states of 2048 x 8192 in fp32 = 5.4e9 and logits of 13 x 2048 x 128256 bytes = 3.4e9.
    assert 51e9 < predicted.device.expected < 60e9
    assert predicted.fits(H100.usable_bytes, 0.06)
    assert _device(workload, "bf16-ddp-full-mb1x8") < 60 * GIB
