"""Validation rules of mode Fixed: its plan can run, and trains the job's batch."""

from __future__ import annotations

import re
from collections.abc import Callable

from memtune.api.errors import Problem
from memtune.api.job import JobSpec
from memtune.api.rule import Rule
from memtune.plans.knobs import Attention, GradientDtype, Knob, Optimizer
from memtune.plans.plan import OPTIONS, SHORT_FORM, Plan
from memtune.plans.refusals import contradiction
from memtune.units import counted

_PATH = "spec.tuning.plan"
_Check = Callable[[JobSpec], Problem | None]


def _of_plan(find: Callable[[JobSpec, Plan], str | None]) -> _Check:
    """A rule between a readable plan and the rest of the spec."""

    def check(spec: JobSpec) -> Problem | None:
        try:
            plan = spec.tuning.fixed_plan
        except ValueError:
            return None  # reported by the rule that it breaks
        advice = plan and find(spec, plan)
        return Problem(_PATH, spec.tuning.plan, advice) if advice else None

    return check


def _other_batch(spec: JobSpec, plan: Plan) -> str | None:
    world, batch = spec.resources.world, spec.training.global_batch_size
    made = plan.global_batch(world)
    if made == batch:
        return None
    rest = f"; micro-batch x accumulation must be {batch // world}" if batch % world == 0 else ""
    gpus = counted(world, "GPU")
    return f"{plan} makes {made} sequences a step on {gpus}, and training.globalBatchSize is {batch}{rest}"


def _other_optimizer(spec: JobSpec, plan: Plan) -> str | None:
    return _other(plan, "optimizer", plan.optimizer, spec.training.optimizer)


def _other_gradients(spec: JobSpec, plan: Plan) -> str | None:
    return _other(plan, "gradientDtype", plan.gradient_dtype, spec.training.gradient_dtype)


def _other_attention(spec: JobSpec, plan: Plan) -> str | None:
    return _other(plan, "attention", plan.attention, spec.training.attention)


def _other(plan: Plan, field: str, said: Knob, decided: Knob) -> str | None:
    """A plan's value that contradicts the training."""
    if said is decided:
        return None
    return f"{plan} has {field} {said}, and training.{field} is {decided}; make them the same"


def _said(short: str, field: str, choice: Knob) -> str:
    return f"self.tuning.plan.contains('-{short}') == (self.training.{field} == '{choice}')"


def _refused(pattern: str, message: str) -> Rule:
    """Reject plans that match ``pattern`` because they cannot run. Plan.parse explains why in more words."""

    def check(spec: JobSpec) -> Problem | None:
        text = spec.tuning.plan or ""
        return Problem(_PATH, text, _why_impossible(text)) if re.search(pattern, text) else None

    return Rule("spec.tuning", _PATH, f"!has(self.plan) || !self.plan.matches('{pattern}')", message, check)


def _why_impossible(text: str) -> str:
    try:
        plan = Plan.parse(text)
    except ValueError as error:
        return str(error)
    return f"{plan} cannot run: {contradiction(plan)}"


_BATCH = "self.tuning.plan.split('-')[3]"
# The API server also evaluates this for a text that is no plan. It compares the sequences of one GPU, since the product
# of all four numbers may exceed 64 bits. Numbers are cut out, not split off: Kubernetes 1.25 cannot bound the cost of a
# nested split.
_MAKES_THE_BATCH = (
    f"!has(self.tuning.plan) || !self.tuning.plan.matches('{SHORT_FORM}') || "
    "self.resources.nodes < 1 || self.resources.gpusPerNode < 1 || "
    "(self.training.globalBatchSize % self.resources.nodes == 0 && "
    "self.training.globalBatchSize / self.resources.nodes % self.resources.gpusPerNode == 0 && "
    "self.training.globalBatchSize / self.resources.nodes / self.resources.gpusPerNode == "
    f"int({_BATCH}.substring(2, {_BATCH}.indexOf('x'))) * int({_BATCH}.substring({_BATCH}.indexOf('x') + 1)))"
)
_TWICE = "|".join(f"-({choices}).*-({choices})" for choices in OPTIONS.values())
_ON_HOST = "-(oopt|oparam|onvme)"
_BUT_ATTENTION = "|".join(choices for knob, choices in OPTIONS.items() if knob != "attention")

FIXED_RULES = (
    Rule(
        "spec",
        _PATH,
        _MAKES_THE_BATCH,
        "tuning.plan: micro-batch x accumulation x GPUs must be training.globalBatchSize",
        _of_plan(_other_batch),
    ),
    Rule(
        "spec",
        _PATH,
        "!has(self.tuning.plan) || ("
        + " && ".join(_said(each.replace("-", ""), "optimizer", each) for each in Optimizer if each != Optimizer.ADAMW)
        + ")",
        "tuning.plan must have the optimizer of training, which a plan leaves out if it is adamw",
        _of_plan(_other_optimizer),
    ),
    Rule(
        "spec",
        _PATH,
        f"!has(self.tuning.plan) || {_said('g32', 'gradientDtype', GradientDtype.FP32)}",
        "tuning.plan must have g32 if training.gradientDtype is fp32, and only then",
        _of_plan(_other_gradients),
    ),
    Rule(
        "spec",
        _PATH,
        "!has(self.tuning.plan) || ("
        + " && ".join(_said(each, "attention", each) for each in Attention if each != Attention.FLASH)
        + ")",
        "tuning.plan must have the attention of training, which a plan leaves out if it is flash",
        _of_plan(_other_attention),
    ),
    _refused(_TWICE, "plan has two options for one choice; leave one out"),
    _refused(
        f"-(ddp|z0)-.*{_ON_HOST}|-z[12]-.*-(oparam|onvme)|-fsdp[a-z]*-.*-(oopt|onvme)",
        "plan: oopt needs z1, z2 or z3, oparam needs z3 or fsdp, onvme needs z3",
    ),
    _refused(
        f"{_ON_HOST}.*-adamw8bit|-adamw8bit.*{_ON_HOST}",
        "plan: adamw8bit has no CPU kernel; leave the offload out, or use another optimizer",
    ),
    _refused(
        "-z[123]-.*-(muon|adafactor)|-fsdp[a-z]*-.*-adafactor",
        "plan: muon and adafactor work on whole matrices; use z0 or ddp, with muon also fsdp",
    ),
    _refused(
        "^(fp8|bf16|fp16)-z0-.*-g32",
        "plan: DeepSpeed keeps no fp32 gradients of 16-bit weights at z0; use z1, or leave g32 out",
    ),
    _refused(
        f"^(tf32|fp32)-[^-]+-[^-]+-[^-]+(-({_BUT_ATTENTION}))*$",
        "plan: flash attention has no kernel for fp32 and tf32; use sdpa",
    ),
)
