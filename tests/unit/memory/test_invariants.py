"""Invariants for every plan: more of a resource never hurts, and slower plans are predicted slower."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from predictors import of_components

from memtune.gpus.gpu import find
from memtune.memory.predictor import Predictor
from memtune.memory.workload import Workload
from memtune.model.architecture import Adapter, Architecture, Kind
from memtune.plans.knobs import FULL, NO_CHECKPOINTING, SELECTIVE, Attention, Offload, Optimizer, Precision, Sharding
from memtune.plans.plan import Plan

LLAMA_1B = Architecture("llama-1b", Kind.DECODER, 2048, 16, 32, 8, 64, 8192, 128256, tied_embeddings=True)
PREDICTOR = Predictor(Workload(LLAMA_1B, find("h100-80gb"), 128, 2048, gpus_per_node=8))
COMPONENTS = of_components(PREDICTOR.workload)
STATES = ("weights", "master weights", "optimizer states", "gradients")

plans = st.builds(
    Plan,
    precision=st.sampled_from([Precision.BF16, Precision.FP32]),
    sharding=st.sampled_from(list(Sharding)),
    checkpointing=st.sampled_from([NO_CHECKPOINTING, SELECTIVE, FULL]),
    micro_batch=st.sampled_from([1, 2, 4, 8]),
    accumulation=st.just(2),
    optimizer=st.sampled_from(list(Optimizer)),
    fused_optimizer=st.booleans(),
    attention=st.sampled_from(list(Attention)),
    fused_loss=st.booleans(),
    expandable_segments=st.booleans(),
)


def _states(predictor: Predictor, plan: Plan) -> float:
    return sum(t.bytes for t in predictor.explain(plan) if t.name in STATES and "step" in t.phase_names)


@given(plans)
def test_peaks_are_ordered(plan: Plan) -> None:
    found = PREDICTOR.predict(plan)
    assert found.requested.expected <= found.allocated.expected <= found.active.expected
    assert found.active.expected <= found.reserved.expected <= found.device.expected
    assert found.phases[found.peak_phase] == found.device
    assert found.device.expected == max(phase.expected for phase in found.phases.values())
    metrics = found.allocated, found.reserved, found.device, found.step_seconds, found.tokens_per_second
    for interval in (*metrics, *found.phases.values()):
        assert 0 < interval.lower <= interval.expected <= interval.upper


@given(plans)
def test_a_larger_micro_batch_never_needs_less_and_is_not_slower(plan: Plan) -> None:
    small, large = (PREDICTOR.predict(replace(plan, micro_batch=m, accumulation=16 // m)) for m in (2, 4))
    assert small.allocated.expected <= large.allocated.expected
    assert large.tokens_per_second.expected >= small.tokens_per_second.expected


@given(plans)
def test_more_checkpointing_needs_no_more_and_is_slower(plan: Plan) -> None:
    none, selective, full = (
        PREDICTOR.predict(replace(plan, checkpointing=c)) for c in (NO_CHECKPOINTING, SELECTIVE, FULL)
    )
    assert none.allocated.expected >= selective.allocated.expected >= full.allocated.expected
    assert none.step_seconds.expected <= selective.step_seconds.expected <= full.step_seconds.expected


@given(plans)
def test_a_higher_zero_stage_holds_less_state_and_moves_more(plan: Plan) -> None:
    stages = [replace(plan, sharding=s) for s in (Sharding.ZERO_0, Sharding.ZERO_1, Sharding.ZERO_2, Sharding.ZERO_3)]
    states = [_states(PREDICTOR, stage) for stage in stages]
    # In fp32 the clone that stages 1 and 2 step on can be more than what they shard of a small optimizer.
    first = 0 if plan.precision is Precision.BF16 else 1
    assert states[first:] == sorted(states[first:], reverse=True)
    seconds = [PREDICTOR.predict(stage).step_seconds.expected for stage in stages[1:]]
    assert seconds == sorted(seconds)


@given(plans)
def test_more_ranks_never_hold_more_state(plan: Plan) -> None:
    wider = Predictor(replace(PREDICTOR.workload, nodes=2))
    assert _states(wider, plan) <= _states(PREDICTOR, plan)


@given(plans)
def test_keeping_units_gathered_needs_no_less_and_is_not_slower(plan: Plan) -> None:
    kept, resharded = (
        PREDICTOR.predict(replace(plan, sharding=s)) for s in (Sharding.FSDP_SHARD_GRAD_OP, Sharding.FSDP)
    )
    assert kept.allocated.expected >= resharded.allocated.expected
    assert kept.step_seconds.expected <= resharded.step_seconds.expected


def test_offload_is_much_slower_and_smaller() -> None:
    plan = Plan.parse("bf16-z2-full-mb4x4")
    here, away = PREDICTOR.predict(plan), PREDICTOR.predict(replace(plan, offload=Offload.OPTIMIZER))
    assert away.device.expected < here.device.expected
    assert away.step_seconds.expected > 1.2 * here.step_seconds.expected


def test_expandable_segments_reserve_less() -> None:
    plan = Plan.parse("bf16-z3-none-mb4x4")
    plain, expandable = PREDICTOR.predict(plan), PREDICTOR.predict(replace(plan, expandable_segments=True))
    assert expandable.reserved.expected < plain.reserved.expected
    assert expandable.allocated == plain.allocated


def test_counted_components_are_surer_than_estimated_ones() -> None:
    # Mostly states with full checkpointing, mostly activations without.
    counted, estimated = (COMPONENTS.predict(Plan.parse(f"bf16-z0-{mode}x1")) for mode in ("full-mb1", "none-mb16"))
    assert counted.allocated.width < 1.15 < 1.3 < estimated.allocated.width


def test_eight_bit_states_and_four_bit_weights_are_less_sure() -> None:
    plain, eight_bit = (PREDICTOR.predict(Plan.parse(f"bf16-fsdp-none-mb4x4{end}")) for end in ("", "-adamw8bit"))
    assert eight_bit.allocated.width > plain.allocated.width
    jobs = [replace(PREDICTOR.workload, adapter=Adapter(8, ("q_proj",), base)) for base in ("none", "nf4")]
    half, four_bit = (Predictor(job).predict(Plan.parse("bf16-ddp-none-mb16x1")) for job in jobs)
    assert four_bit.allocated.width > half.allocated.width
