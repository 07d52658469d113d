"""What optimizers keep and allocate, by hand and beside an emulated GPU."""

from dataclasses import replace

import pytest

from memtune.gpus.gpu import find
from memtune.memory.formulas.recipe import is_narrow
from memtune.memory.formulas.shape import shape_of
from memtune.memory.formulas.terms import STEP
from memtune.memory.host_memory import offloaded_bytes
from memtune.memory.optimizer_bytes import BYTES, optimizer_bytes
from memtune.memory.predictor import Predictor
from memtune.memory.speed import pace_of
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture, Kind
from memtune.model.plain import from_facts
from memtune.plans.knobs import Optimizer
from memtune.plans.plan import Plan

# 131,072 parameters are the embedding, as many the head, 46,208 each of 8 layers, and 64 the last norm.
H100 = find("h100-80gb")
TINY = Architecture("tiny", Kind.DECODER, 64, 8, 4, 2, 16, 176, 2048)
# 478.6 million parameters, of which 81.9 million are the embedding and the head.
HALF = from_facts(
    {
        "hiddenSize": 1280, "layers": 20, "heads": 20, "kvHeads": 20, "ffnSize": 3456, "vocabSize": 32_000,
        "gatedFfn": True, "norm": "rmsnorm", "name": "0.5B",
    }
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("adamw", 8),
        ("adamw_torch_fused", 8),
        ("adamw-8bit", 2 * (1 + 4 / 256)),
        ("AdamW8bit", 2 * (1 + 4 / 256)),
        ("adamw_bnb_8bit", 2 * (1 + 4 / 256)),
        ("AdamWFp8", 2 * (1 + 4 / 256)),
        ("adamw_torch_4bit", 2 * (1 / 2 + 4 / 128)),
        ("lion_8bit", 1 + 4 / 256),
        ("lion_32bit", 4),
        ("ademamix_8bit", 3 * (1 + 4 / 256)),
        ("ademamix", 12),
        ("paged_adamw_8bit", 0),
        ("paged_lion_32bit", 0),
        ("rmsprop", 4),
        ("schedule_free_adamw", 8),
        ("adafactor", 0.02),
        ("prodigy", 16),
        ("sgd", 4),
        ("SGD without momentum", 0),
    ],
)
def test_optimizer_names_give_their_state_bytes(name: str, states: float) -> None:
    found = optimizer_bytes(name)
    assert found is not None
    assert found.states == states


def test_a_name_that_nobody_knows_is_not_guessed() -> None:
    assert [optimizer_bytes(name) for name in ("galore_adamw", "", "newton")] == [None] * 3


def test_states_in_half_precision_take_half() -> None:
    found = optimizer_bytes("muon")
    assert found is not None
    # Half the states, foreach temporaries of AdamW's and update; Newton-Schulz runs on three matrices in bf16 anyhow.
    assert (found.states, found.outside, found.foreach, found.alone) == (4, 4, 4, 4 + 3 * 2)
    half = found.of_bytes(2)
    assert (half.states, half.outside, half.foreach, half.alone) == (2, 2, 2, 2 + 3 * 2)


def test_only_states_with_scales_are_narrow() -> None:
    assert {each for each in Optimizer if is_narrow(BYTES[each].states)} == {Optimizer.ADAMW_8BIT}
    narrow = ("lion_4bit", "lion_8bit", "adamw_torch_4bit", "AdamWFp8", "ademamix_8bit")
    wide = ("adafactor", "sgd", "lion", "adamw", "paged_adamw_8bit")
    for names, expected in ((narrow, True), (wide, False)):
        for name in names:
            found = optimizer_bytes(name)
            assert found is not None
            assert is_narrow(found.states) is expected, name
    assert not is_narrow(2.0)


@pytest.mark.parametrize(
    ("plan", "transients"),
    [
        ("fp32-ddp-none-mb1x64", 0),
        ("fp32-ddp-none-mb1x64-foreach", 4 * 631_872),
        ("fp32-ddp-none-mb1x64-sgd-foreach", 0),  # in place
        ("fp32-ddp-none-mb1x64-lion", 4 * 131_072),  # the embedding's update
        ("fp32-ddp-none-mb1x64-adafactor", 4 * 131_072),
        ("fp32-ddp-none-mb1x64-muon", 10 * 64 * 176),  # of a block, for AdamW has the embedding
        ("fp32-ddp-none-mb1x64-muon-foreach", 4 * (2 * 131_072 + 64)),  # AdamW's, after Muon's
    ],
)
def test_memory_of_an_optimizer_step_by_hand(plan: str, transients: float) -> None:
    terms = Predictor(Workload(TINY, find("h100-80gb"), 64, 64)).explain(Plan.parse(plan))
    assert sum(term.bytes for term in terms if term.name == "step transients" and STEP in term.phases) == transients


@pytest.mark.parametrize(
    ("plan", "with_momentum", "without"),
    [
        ("fp32-ddp-none-mb1x64-sgd", 4 * 631_872, 0),
        ("fp32-ddp-none-mb1x64", 8 * 631_872, 8 * 631_872),
        ("fp32-z2-none-mb1x8-sgd", 4 * 631_872 / 8, 0),
    ],
)
def test_sgd_without_momentum_keeps_no_states(plan: str, with_momentum: float, without: float) -> None:
    workload = Workload(TINY, H100, 64, 64, gpus_per_node=1 if "ddp" in plan else 8)
    for each, expected in ((workload, with_momentum), (replace(workload, plain_sgd=True), without)):
        terms = Predictor(each).explain(Plan.parse(plan))
        assert sum(term.bytes for term in terms if term.name == "optimizer states") == expected


def test_sgd_without_momentum_offloads_and_touches_no_states() -> None:
    plan = Plan.parse("bf16-z2-none-mb1x8-sgd-oopt")
    momentum = Workload(TINY, H100, 64, 64, gpus_per_node=8)
    plain = replace(momentum, plain_sgd=True)
    # On each of 8 ranks, 4 bytes of an eighth of 631,872 parameters.
    assert offloaded_bytes(momentum, plan) - offloaded_bytes(plain, plan) == 8 * 4 * 631_872 // 8
    steps = [
        pace_of(each, shape_of(TINY, None), Plan.parse("fp32-ddp-none-mb1x8-sgd")).step for each in (momentum, plain)
    ]
    assert (steps[0] - steps[1]) * H100.memory_bytes_per_second == pytest.approx(2 * 4 * 631_872)


def test_muon_moves_two_moments_of_weights_outside_block_matrices() -> None:
    step = pace_of(Workload(TINY, H100, 64, 64), shape_of(TINY, None), Plan.parse("fp32-ddp-none-mb1x64-muon")).step
    # Weights and gradients are 12 bytes in a step, each moment 8; Muon's products are taken to be two more passes.
    bytes_read = 3 * ((2 * 4 + 12) * 631_872 + 2 * 4 * (2 * 131_072 + 64))
    assert step == pytest.approx(bytes_read / H100.memory_bytes_per_second)


def test_muon_has_two_moments_of_weights_outside_block_matrices() -> None:
    terms = Predictor(Workload(TINY, find("h100-80gb"), 64, 64)).explain(Plan.parse("fp32-ddp-none-mb1x64-muon"))
    states = sum(term.bytes for term in terms if term.name == "optimizer states")
    assert states == 4 * 631_872 + 4 * (2 * 131_072 + 64)


@pytest.mark.parametrize(
    ("optimizer", "emulated"),
    [("", 9.7825), ("-sgd", 7.8679), ("-lion", 7.8914), ("-muon", 8.1952), ("-adafactor", 5.9766)],
)
def test_each_optimizer_allocates_the_memory_of_an_emulated_gpu(optimizer: str, emulated: float) -> None:
    """In GB, of an emulated H200 with torch 2.13: full checkpointing of one row of 2,048 tokens, DDP on one rank."""
    workload = Workload(HALF, find("h200-141gb"), 1, 2048, fake_ranks=True)
    found = Predictor(workload).predict(Plan.parse(f"bf16-ddp-full-mb1x1{optimizer}"))
    assert found.allocated.expected == pytest.approx(emulated * 1e9, rel=0.03)
