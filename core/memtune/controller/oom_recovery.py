"""The downgrade after an out-of-memory: the fastest plan that the recalibrated knowledge and the checkpoint allow.

It is one of the job's space, or the next of `memtune.planning.ladder`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from memtune.api.container import trainer_memory
from memtune.api.status import AttemptStatus
from memtune.controller.context import Context
from memtune.controller.host_requests import host_need, host_request
from memtune.controller.records import plan_of
from memtune.controller.resume_points import start_under
from memtune.planning.knowledge import PlanKnowledge
from memtune.planning.ladder import PHASE_OF, RUNG_OF, Downgrade, Exhausted, Failure, OutOfMemoryKind, descend
from memtune.planning.space import Space
from memtune.plans.knobs import Offload, Optimizer
from memtune.plans.plan import Plan

# Changing one of these needs the user's consent; the other knobs keep the numerics of training.
_NUMERICS = ("precision", "gradient_dtype")
# So do these, unless the job's space opens them: to name a choice there is the consent.
_OPENED = {"optimizer": "optimizers", "attention": "attentions", "fused_loss": "fused_losses"}
# A pod that ran out of host memory requests this much more next time.
_MORE_HOST = 1.5
_MOST_HOST = 4.0


@dataclass(frozen=True)
class Next:
    """The plan and settings of the relaunch after an out-of-memory."""

    plan: Plan
    rung: str
    evaluation_batch: int = 0
    sharded_save: bool = False
    host_request_bytes: int = 0


def after_device_oom(
    context: Context, knowledge: PlanKnowledge, last: AttemptStatus, resumable_only: bool = True
) -> Next | None:
    """The next plan after GPU memory ran out; None if no allowed plan is small enough."""
    kind = OutOfMemoryKind(last.out_of_memory or "activation")
    return _least_change(context, knowledge, last, kind) or _smaller(context, knowledge, last, kind, resumable_only)


def _least_change(
    context: Context, knowledge: PlanKnowledge, last: AttemptStatus, kind: OutOfMemoryKind
) -> Next | None:
    """After a failed evaluation or save, keep the plan if the script can shrink that phase itself."""
    if kind not in PHASE_OF or _did_not_help(context, last, kind):
        return None
    plan, workload = plan_of(last), knowledge.workload
    if kind is OutOfMemoryKind.SAVING and _saves_shards_anyway(context.job.spec.integration, plan):
        return None
    if last.evaluation_batch:
        workload = replace(workload, evaluation=replace(workload.evaluation, batch_size=last.evaluation_batch))
    found = descend(workload, knowledge.predictor, plan, Failure(kind, 0.0))
    if isinstance(found, Exhausted):
        return _outputs_on_host(context, last, kind)
    return Next(
        plan,
        found.rungs[0],
        found.evaluation_batch or last.evaluation_batch,
        found.sharded_save or last.sharded_save,
        last.host_request_bytes,
    )


def _saves_shards_anyway(integration: str, plan: Plan) -> bool:
    """Whether an integration never gathers for a checkpoint; what else the script saves whole, it asks for whole."""
    return integration == "lightning" or (integration == "accelerate" and plan.sharding.backend == "deepspeed")


def _outputs_on_host(context: Context, last: AttemptStatus, kind: OutOfMemoryKind) -> Next | None:
    """The Trainer can move the outputs that an evaluation collects to the host.

    It does so with each smaller batch already, so this helps only where the first evaluation ran in batches of one.
    """
    earlier = (each for each in context.status.attempts if each.number < last.number)
    if (
        kind is not OutOfMemoryKind.EVALUATION
        or context.job.spec.integration != "hf-trainer"
        or last.evaluation_batch != 1
        or any(each.out_of_memory == kind.value for each in earlier)
    ):
        return None
    return Next(plan_of(last), "evaluation-outputs", 1, last.sharded_save, last.host_request_bytes)


def _did_not_help(context: Context, last: AttemptStatus, kind: OutOfMemoryKind) -> bool:
    """Whether this was tried before: a custom script may ignore what it is asked to do."""
    if kind is OutOfMemoryKind.SAVING:
        return last.sharded_save
    earlier = (each for each in context.status.attempts if each.number < last.number)
    return any(
        0 < each.evaluation_batch <= last.evaluation_batch for each in earlier if each.out_of_memory == kind.value
    )


def _smaller(
    context: Context, knowledge: PlanKnowledge, last: AttemptStatus, kind: OutOfMemoryKind, resumable_only: bool
) -> Next | None:
    """The fastest plan that the space or the ladder offers."""
    plan = plan_of(last)
    expected, phase = knowledge.expected_bytes(plan), PHASE_OF.get(kind)
    in_micro_batches = kind is OutOfMemoryKind.EVALUATION and last.evaluation_batch == plan.micro_batch
    # Smaller training activations make no room for a save, nor for an evaluation with its own batch size.
    general = OutOfMemoryKind.ACTIVATION if in_micro_batches else OutOfMemoryKind.STATE if phase else kind

    def allowed(option: Plan) -> bool:
        is_smaller = option != plan and knowledge.expected_bytes(option) < expected
        if is_smaller and in_micro_batches:
            is_smaller = option.micro_batch < plan.micro_batch
        elif is_smaller and phase:
            is_smaller = (
                knowledge.predict(option).phases[phase].expected < knowledge.predict(plan).phases[phase].expected
            )
        return (
            is_smaller
            and knowledge.may_try(option)
            and (not resumable_only or start_under(context.job, context.status, option).resume is not None)
        )

    options = [
        found
        for found in (
            fastest_accepted(knowledge, plan, allowed),
            _by_ladder(context, knowledge, plan, general, allowed),
        )
        if found
    ]
    if not options:
        return None
    best = max(options, key=lambda option: knowledge.predict(option).speed(knowledge.usable_bytes))
    return Next(best, _rung(plan, best), last.evaluation_batch, last.sharded_save, last.host_request_bytes)


def fastest_accepted(knowledge: PlanKnowledge, plan: Plan, allowed: Callable[[Plan], bool]) -> Plan | None:
    """The fastest plan of the space that was measured to fit, or that the model accepts."""
    measured = [option for option in knowledge.measured_bytes if knowledge.space.has(option)]
    offered = [_with_small_knobs(knowledge.space, candidate.plan, plan) for candidate in knowledge.ranking.fitting]
    accepted = [
        option
        for option in (*measured, *offered)
        if _is_consented(knowledge.space, plan, option) and knowledge.keeps_headroom(option) and allowed(option)
    ]
    return max(accepted, key=lambda option: knowledge.predict(option).speed(knowledge.usable_bytes), default=None)


def _with_small_knobs(space: Space, option: Plan, plan: Plan) -> Plan:
    """A plan of the space with the knobs that the space does not speak of taken from another."""
    return replace(
        option,
        expandable_segments=(option if len(space.expandable_segments) > 1 else plan).expandable_segments,
        fused_optimizer=plan.fused_optimizer,
        bucket_elements=plan.bucket_elements,
        max_split_size_mib=plan.max_split_size_mib,
    )


def _by_ladder(
    context: Context, knowledge: PlanKnowledge, plan: Plan, kind: OutOfMemoryKind, allowed: Callable[[Plan], bool]
) -> Plan | None:
    """The plan that the ladder reaches from the one that failed, within the space and the user's consent."""
    usable, expected = knowledge.usable_bytes, knowledge.expected_bytes(plan)
    found = descend(
        knowledge.workload,
        knowledge.predictor,
        plan,
        Failure(kind, max(expected - usable, 0.0)),
        consent=_consent(context, knowledge.space),
        margin_bytes=knowledge.headroom * usable,
        allowed=lambda option: knowledge.space.has(option) and allowed(option),
    )
    if not isinstance(found, Downgrade) or not allowed(found.plan):
        return None
    return None if knowledge.predict(found.plan).cannot_fit(usable) else found.plan


def _is_consented(space: Space, plan: Plan, option: Plan) -> bool:
    """Whether a plan changes another's numerics only in knobs that the job opens."""
    return all(
        name in space.opened and getattr(option, name) in getattr(space, _OPENED[name])
        for name in _changed_numerics(plan, option)
    )


def _changed_numerics(old: Plan, new: Plan) -> set[str]:
    return _differing(old, new) & {*_NUMERICS, *_OPENED}


def _consent(context: Context, space: Space) -> frozenset[str]:
    """The rungs that the job consents to: by name, or by opening the optimizer that one leads to."""
    is_open = "optimizer" in space.opened and Optimizer.ADAMW_8BIT in space.optimizers
    opened = ("optimizer-8bit",) if is_open else ()
    return frozenset((*context.job.spec.retry.consent, *opened))


def _differing(old: Plan, new: Plan) -> set[str]:
    return {each.name for each in fields(Plan) if getattr(old, each.name) != getattr(new, each.name)}


def _rung(old: Plan, new: Plan) -> str:
    """The knobs in which two plans differ, as the ladder names them; of others, the space opens the choice."""
    differing = _differing(old, new)
    names = {**{name: name.replace("_", "-") for name in _OPENED}, **RUNG_OF}
    if new.optimizer is not Optimizer.ADAMW_8BIT:
        names["optimizer"] = "optimizer"
    return "+".join(dict.fromkeys(names[each.name] for each in fields(Plan) if each.name in differing & names.keys()))


def after_host_oom(context: Context, knowledge: PlanKnowledge, last: AttemptStatus) -> Next | None:
    """More host memory within the template's limit, else less offload; None if neither is left."""
    plan, own = plan_of(last), trainer_memory(context.job)
    asked = max(last.host_request_bytes, host_request(context, plan, last.resume), own.asked_bytes)
    needed = host_need(knowledge, plan, last.resume)
    most = own.limit_bytes or int(_MOST_HOST * needed)
    wanted = min(int(max(needed, _MORE_HOST * asked)), most)
    # A larger request helps if the node was full. A second kill at the container's own limit shows that it was not.
    at_limit = bool(own.limit_bytes) and any(pod.exit_reason == "OOMKilled" for pod in context.pods(last))
    if wanted > asked and not (at_limit and last.host_request_bytes):
        return Next(plan, "host-memory", last.evaluation_batch, last.sharded_save, wanted)
    return _less_offload(context, knowledge, last)


def _less_offload(context: Context, knowledge: PlanKnowledge, last: AttemptStatus) -> Next | None:
    plan = plan_of(last)
    lesser = [offload for offload in Offload if offload < plan.offload]

    def allowed(option: Plan) -> bool:
        is_lesser = option.offload in lesser and not _changed_numerics(plan, option)
        return is_lesser and start_under(context.job, context.status, option).resume is not None

    found = fastest_accepted(knowledge, plan, allowed)
    return (
        Next(found, "less-offload", last.evaluation_batch, last.sharded_save, last.host_request_bytes)
        if found
        else None
    )
