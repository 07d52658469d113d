"""Preflight check of a job's template before the first pod is created."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from typing import NamedTuple

from memtune.api import Job, reasons, unknown_product
from memtune.controller import Blocker
from memtune.plans.knobs import NO_CHECKPOINTING, Precision, Sharding
from memtune.plans.plan import Plan
from memtune.wire.run import Run, RunKind
from memtune_operator.pods import gangs, security_policy
from memtune_operator.pods.kinds import Manifest
from memtune_operator.pods.run_objects import run_pods
from memtune_operator.pods.template import read_template
from memtune_operator.pods.wrapped_container import TemplateError

# Any plan will do: pods of two plans differ only in variables and the name.
ANY_PLAN = Plan(Precision.BF16, Sharding.ZERO_0, NO_CHECKPOINTING, 1, 1)
_ANY_RUN = Run(RunKind.TRAIN, 1, ANY_PLAN)
# Packages that samplers need beside Optuna, in the operator's image only if it is built with them.
_LIBRARIES = {"GP": ("torch", "scipy")}


class Preflight(NamedTuple):
    """A sample pod for a dry run, or the reason why none can be built."""

    pod: Manifest | None = None
    blocker: Blocker | None = None


def check(
    job: Job,
    rules: security_policy.Policy,
    runner_image: str,
    installed: Collection[gangs.Gang] = tuple(gangs.Gang),
    has_attempts: bool = False,
) -> Preflight:
    """Check the template as every run will read it. A job that ``has_attempts`` no longer needs its sampler."""
    if job.spec.resources.is_emulated and (problem := unknown_product(job)):
        sentence = f"spec.resources.gpuProduct: {problem}; name a GPU to emulate"
        return Preflight(blocker=Blocker(reasons.TEMPLATE_REJECTED, sentence))
    try:
        template = read_template(job, runner_image)
        pod = run_pods(job, _ANY_RUN, runner_image, rules.is_restricted)[0]
    except TemplateError as error:
        return Preflight(blocker=Blocker(error.reason, str(error)))
    if denied := security_policy.violation(rules, job, template):
        return Preflight(blocker=Blocker(reasons.POLICY_DENIED, denied))
    if not job.spec.resources.is_emulated and (missing := gangs.missing_integration(job, template, installed)):
        return Preflight(blocker=missing)
    if not has_attempts and (absent := _missing_sampler(job)):
        return Preflight(blocker=absent)
    return Preflight(pod)


def _missing_sampler(job: Job) -> Blocker | None:
    """Why the job's sampler cannot run in this operator."""
    tuning = job.spec.tuning
    absent = [name for name in _LIBRARIES.get(tuning.sampler, ()) if importlib.util.find_spec(name) is None]
    if tuning.mode != "Probe" or not absent:
        return None
    names = " and ".join(absent)
    needs = f"{tuning.sampler} needs {names}, not installed beside the operator"
    remedy = f"build its image with --build-arg {tuning.sampler}=true (under memtune run install {names})"
    sentence = f"spec.tuning.sampler: {needs}: {remedy}, or use MemTune, TPE or Random"
    return Blocker(reasons.SAMPLER_MISSING, sentence)
