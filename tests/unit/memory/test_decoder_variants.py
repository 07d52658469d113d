"""A decoder's own length, a compiled loss, a quantized head and products that keep quantized inputs, by hand."""

from dataclasses import replace

import pytest

from memtune.gpus.gpu import find
from memtune.memory.constants import DEFAULT_CONSTANTS
from memtune.memory.formulas.activations import activation_terms, layer_bytes
from memtune.memory.formulas.packing import largest_tensors
from memtune.memory.formulas.recipe import lower
from memtune.memory.formulas.shape import shape_of
from memtune.memory.formulas.terms import BACKWARD, FIRST_LAYER, Term
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Evaluation, Workload
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.model.count import quantizable_parameters
from memtune.plans.plan import Plan

H100 = find("h100-80gb")
TINY = Architecture("tiny", Kind.DECODER, 64, 8, 4, 2, 16, 176, 2048)
# Two layers in each stack, of 64 hidden elements in 4 heads, with a feed-forward of 256.
PAIR = Architecture(
    "pair", Kind.ENCODER_DECODER, 64, 2, 4, 4, 16, 256, 1000, encoder_layers=2, gated_ffn=False, rms_norm=False
)
PLAN = Plan.parse("bf16-z0-none-mb2x1")


def _terms(target_length: int, plan: Plan = PLAN) -> list[Term]:
    workload = Workload(PAIR, H100, plan.global_batch(1), 512, target_length=target_length)
    return activation_terms(shape_of(PAIR, None), lower(workload, plan), DEFAULT_CONSTANTS)


def _evaluated(
    evaluation: Evaluation, target: int, plan: str = "bf16-z0-none-mb2x1", model: Architecture = PAIR
) -> float:
    workload = Workload(model, H100, 2, 512, target_length=target, evaluation=evaluation)
    return _total(Predictor(workload).explain(Plan.parse(plan)), "evaluation")


def _total(terms: list[Term], name: str) -> float:
    # Without what is left of it in the first layer.
    return sum(term.bytes for term in terms if term.name == name and term.phase_names != ("first layer",))


@pytest.mark.parametrize("plan", ["bf16-z0-none-mb2x1", "bf16-z0-full-mb2x1", "bf16-z0-none-mb2x1-eager"])
def test_targets_as_long_as_their_sources_change_nothing(plan: str) -> None:
    parsed = Plan.parse(plan)
    for name in ("activations", "layer in backward"):
        assert _total(_terms(512, parsed), name) == pytest.approx(_total(_terms(0, parsed), name))


def test_a_shorter_target_by_hand() -> None:
    # A layer keeps 2 x (2 x 64 + 2 x 64) bytes a token of norms, 2 x 4 x 64 + 4 x 4 of attention, 2 x 2 x 256 of its
    # feed-forward.
    layer = 512 + 528 + 1024
    workload = Workload(PAIR, H100, 2, 512, target_length=128)
    assert layer_bytes(shape_of(PAIR, None), lower(workload, PLAN)).total == layer
    # Cross-attention has one norm of three, 256, query and output 256, and 4 x 4; keys and values, 256, of each source
    # token. Sources are 2 x 512 tokens, targets 2 x 128, and the encoder's output is 2 x 64 bytes a source token.
    factor = DEFAULT_CONSTANTS.activation_factor
    encoder, decoder = factor * layer * 1024 * 2, factor * layer * 256 * 2
    crossing = factor * ((256 + 256 + 16) * 256 + 256 * 1024) * 2
    # The decoder's last norm keeps its input, and the head its own.
    last_norm = (2 * 64 + 2 * 64) * 256
    assert _total(_terms(128), "activations") == pytest.approx(encoder + decoder + crossing + 128 * 1024 + last_norm)


def test_logits_are_those_of_the_targets() -> None:
    for length, tokens in ((0, 1024), (128, 256)):
        workload = Workload(PAIR, H100, 2, 512, target_length=length)
        (logits,) = [term for term in Predictor(workload).explain(PLAN) if term.name == "logits"]
        assert logits.bytes == 14 * tokens * 1000


@pytest.mark.parametrize(
    ("target", "evaluated"),
    [
        # Of each token its hidden states and the widest feed-forward, 2 x (2 x 256 + 4 x 64) bytes, in the stack that
        # has more tokens, and of each target 2 + 8 bytes of 1,000 logits.
        (0, 1536 * 1024 + 10_000 * 1024),
        (128, 1536 * 1024 + 10_000 * 256),
        (2048, 1536 * 4096 + 10_000 * 4096),
    ],
)
def test_an_evaluation_batch_has_the_logits_of_its_targets(target: int, evaluated: float) -> None:
    assert _evaluated(Evaluation(2), target) == evaluated


@pytest.mark.parametrize("target", [128, 2048])
def test_the_longer_stack_has_the_most_scores(target: int) -> None:
    # 8 bytes of each score, which are more than 10 of each of 1,000 logits of a target.
    wide = replace(PAIR, vocab_size=100)
    longest = max(512, target)
    found = _evaluated(Evaluation(2), target, "bf16-z0-none-mb2x1-eager", wide)
    assert found == 1536 * 2 * longest + 8 * 4 * 2 * longest**2


def test_generation_caches_targets_and_cross_attention() -> None:
    def cached(target: int, sequence_tokens: int = 0) -> float:
        generating = Evaluation(2, generates=True, sequence_tokens=sequence_tokens)
        return _evaluated(generating, target) - _evaluated(Evaluation(2), target)

    # Keys and values of 64 elements, two bytes each, in two layers; each has those of the targets and of the source.
    assert cached(0) == 2 * 2 * 64 * 2 * 2 * (512 + 512)
    assert cached(128) == 2 * 2 * 64 * 2 * 2 * (128 + 512)
    assert cached(128, sequence_tokens=20) == 2 * 2 * 64 * 2 * 2 * (32 + 512)


def test_the_largest_logits_are_those_of_the_targets() -> None:
    shape = shape_of(PAIR, None)

    def moving(target: int, plan: str = "bf16-z0-none-mb2x1") -> float:
        return largest_tensors(shape, lower(Workload(PAIR, H100, 2, 512, target_length=target), Plan.parse(plan)))[1]

    assert [moving(target) for target in (0, 512, 2048)] == [4 * 1000 * 512, 4 * 1000 * 512, 4 * 1000 * 2048]
    # Of shorter targets the logits may be smaller than what the encoder has in its feed-forward, or its scores.
    assert moving(8) == 2 * 256 * 512
    assert moving(128, "bf16-z0-none-mb2x1-eager") == 2 * 4 * 512 * 512
    assert moving(2048, "bf16-z0-none-mb2x1-eager") == 2 * 4 * 2048 * 2048


def test_a_compiled_loss_leaves_the_logits_and_their_gradient() -> None:
    plan, workload = Plan.parse("bf16-fsdp-none-mb2x1"), Workload(TINY, H100, 2, 64)

    def logits(compiled: bool = False, compiles_loss: bool | None = None) -> float:
        asked = replace(workload, compiled=compiled, compiles_loss=compiles_loss)
        terms = Predictor(asked).explain(plan)
        return sum(term.bytes for term in terms if term.name == "logits")

    # FSDP's blocks are compiled one by one, and so not the loss: 2 + 12 bytes a logit, else 2 + 2.
    assert logits(compiled=True) == logits() == 14 * 128 * 2048
    assert logits(compiles_loss=True) == logits(compiled=True, compiles_loss=True) == 4 * 128 * 2048
    # The loss of a compiled model may be left eager.
    assert logits(compiled=True, compiles_loss=False) == logits()


def test_a_quantized_head_is_held_in_its_codes() -> None:
    plain = shape_of(TINY, Adapter(8, ("q_proj",), "nf4"))
    quantized = shape_of(TINY, Adapter(8, ("q_proj",), "nf4", quantized_head=True))
    assert plain.quantizable == quantizable_parameters(TINY)
    assert quantized.quantizable - plain.quantizable == 2048 * 64


def test_products_that_keep_quantized_inputs_keep_the_output_of_norms_too() -> None:
    shape = shape_of(TINY, Adapter(8, ("o_proj",), "nf4"))
    workload = Workload(TINY, H100, 2, 64, adapter=Adapter(8, ("o_proj",), "nf4"))
    recipe = lower(workload, Plan.parse("bf16-fsdp-none-mb2x1"))
    without, kept = (layer_bytes(shape, replace(recipe, keeps_quantized_inputs=keeps)) for keeps in (False, True))
    # Two norms' outputs of 64, and the input of the down projection, 176, two bytes each.
    assert (kept.norms - without.norms, kept.mlp - without.mlp) == (2 * 2 * 64, 2 * 176)


def test_the_stack_with_the_larger_layer_is_recomputed_by_hand() -> None:
    # Of one sample's 512 source and 256 target tokens, an encoder layer's 2,064 bytes a token are more than a decoder
    # layer's, with 528 of cross-attention and 256 of keys and values for each source token, and the gradient of the
    # encoder's output, 128 for each. Two tensors of a feed-forward are beside it.
    plan, factor, inside = Plan.parse("bf16-z0-full-mb1x1"), DEFAULT_CONSTANTS.activation_factor, 2 * 2 * 256
    encoder = (factor * 2064 + inside) * 512
    assert encoder > (factor * (2064 + 528) + inside) * 256 + (factor * 256 + 128) * 512
    terms = _terms(256, plan)
    for phase in (BACKWARD, FIRST_LAYER):
        found = sum(term.bytes for term in terms if term.name == "layer in backward" and phase in term.phases)
        assert found == pytest.approx(encoder)
