"""The rules of mode Fixed: its plan is there, can be read, and trains what the job says."""

from __future__ import annotations

from memtune.plan import Plan
from memtune.space import contradiction
from memtune.spec.errors import Problem
from memtune.spec.job import JobSpec
from memtune.spec.rule import Rule
from memtune.units import counted

_PATH = "spec.tuning.plan"


def fixed_plan(spec: JobSpec) -> Plan | None:
    """The plan that mode Fixed launches; None in the other modes. Of a spec that broke no rule."""
    return Plan.parse(spec.tuning.plan) if spec.tuning.plan else None


def _plan_goes_with_mode(spec: JobSpec) -> Problem | None:
    mode, plan = spec.tuning.mode, spec.tuning.plan
    if mode == "Fixed" and plan is None:
        return Problem(_PATH, None, "mode Fixed launches a plan of yours; give it, like bf16-z2-sel-mb4x8")
    if mode != "Fixed" and plan is not None:
        return Problem(_PATH, plan, f"mode {mode} finds the plan itself; set tuning.mode to Fixed, or leave plan out")
    return None


def _plan_trains_the_job(spec: JobSpec) -> Problem | None:
    try:
        plan = fixed_plan(spec)
    except ValueError as error:
        return Problem(_PATH, spec.tuning.plan, str(error))
    advice = plan and (_other_batch(spec, plan) or _other_training(spec, plan) or _impossible(plan))
    return Problem(_PATH, spec.tuning.plan, advice) if advice else None


def _other_batch(spec: JobSpec, plan: Plan) -> str | None:
    world, batch = spec.resources.world, spec.training.global_batch_size
    made = plan.global_batch(world)
    if made == batch:
        return None
    rest = f"; micro-batch x accumulation must be {batch // world}" if batch % world == 0 else ""
    gpus = counted(world, "GPU")
    return f"{plan} makes {made} sequences a step on {gpus}, and training.globalBatchSize is {batch}{rest}"


def _other_training(spec: JobSpec, plan: Plan) -> str | None:
    """What a plan can say, and the training decides."""
    training = spec.training
    for field, said, decided in (
        ("optimizer", plan.optimizer, training.optimizer),
        ("gradientDtype", plan.gradient_dtype, training.gradient_dtype),
        ("attention", plan.attention, training.attention),
    ):
        if said is not decided:
            return f"{plan} has {field} {said}, and training.{field} is {decided}; make them the same"
    return None


def _impossible(plan: Plan) -> str | None:
    why = contradiction(plan)
    return f"{plan} cannot run: {why}" if why else None


_BATCH = "self.tuning.plan.split('-mb')[1].split('-')[0].split('x')"

FIXED_RULES = (
    Rule(
        "spec.tuning",
        "(self.mode == 'Fixed') == has(self.plan)",
        "plan is what mode Fixed launches: give it in that mode, and in no other",
        _plan_goes_with_mode,
    ),
    Rule(
        "spec",
        f"!has(self.tuning.plan) || int({_BATCH}[0]) * int({_BATCH}[1]) * "
        "self.resources.nodes * self.resources.gpusPerNode == self.training.globalBatchSize",
        "tuning.plan: micro-batch x accumulation x GPUs must be training.globalBatchSize",
        _plan_trains_the_job,
    ),
)
