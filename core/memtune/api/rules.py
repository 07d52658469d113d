"""Validation rules between fields of the spec, each in CEL for the API server and in Python.

Python serves the command line, servers without CEL, and advice that a fixed sentence cannot give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memtune.api.architecture_rules import ARCHITECTURE_RULES
from memtune.api.errors import Problem
from memtune.api.fixed_mode_rules import FIXED_RULES
from memtune.api.job import CheckpointVolume, JobSpec
from memtune.api.model import Model
from memtune.api.rule import FORBIDDEN, REQUIRED, Rule
from memtune.plans.knobs import Offload, Optimizer
from memtune.units import counted


def broken_rules(spec: JobSpec) -> list[Problem]:
    """The problems of the spec by its rules. A mistake that breaks two rules is reported once."""
    found: list[Problem] = []
    for rule in _asked(spec):
        if (problem := rule.check(spec)) and problem not in found:
            found.append(problem)
    return found


def _asked(spec: JobSpec) -> Iterator[Rule]:
    """The rules that can be broken: those of a block only if the spec has it."""
    yield from _SPEC_RULES
    if spec.tuning.plan:
        yield from FIXED_RULES
    if spec.model.architecture:
        yield from ARCHITECTURE_RULES


def _one_model(spec: JobSpec) -> Problem | None:
    given = _given(spec.model, "hf_config", "architecture", "factory")
    if len(given) == 1:
        return None
    return Problem("spec.model", given, f"{_listed(given)} given; give exactly one of hfConfig, architecture, factory")


def _one_volume(spec: JobSpec) -> Problem | None:
    volume = spec.checkpoint.volume if spec.checkpoint else None
    given = _given(volume, "persistent_volume_claim", "nfs", "host_path") if volume else ["none needed"]
    if len(given) == 1:
        return None
    advice = f"{_listed(given)} given; give exactly one of persistentVolumeClaim, nfs, hostPath"
    return Problem("spec.checkpoint.volume", given, advice)


def _given(block: Model | CheckpointVolume, *names: str) -> list[str]:
    fields = type(block).model_fields
    return [fields[name].alias or name for name in names if getattr(block, name) is not None]


def _listed(names: list[str]) -> str:
    return f"{' and '.join(names)} are" if names else "none is"


def _factory_has_image(spec: JobSpec) -> Problem | None:
    if spec.model.factory is None or spec.template is not None:
        return None
    advice = f"{spec.model.factory} is a callable in the job's own image; give that image in spec.template"
    return Problem("spec.model.factory", spec.model.factory, advice)


def _arguments_have_factory(spec: JobSpec) -> Problem | None:
    if spec.model.factory_arguments is None or spec.model.factory is not None:
        return None
    advice = "they are what factory is called with, and there is none; give factory, or leave them out"
    return Problem("spec.model.factoryArguments", spec.model.factory_arguments, advice)


def _factory_is_whole(spec: JobSpec) -> Problem | None:
    if spec.model.factory is None or spec.model.peft is None:
        return None
    advice = "a factory builds all that is trained; let it add the adapter, and leave peft out"
    return Problem("spec.model.peft", spec.model.peft, advice)


def _trace_has_no_cache(spec: JobSpec) -> Problem | None:
    evaluation = spec.training.evaluation
    if spec.model.factory is None or evaluation is None or not evaluation.generates:
        return None
    advice = (
        "a trace of factory does not say what the model keeps while it generates; set it to false and let "
        "tuning.headroom leave room for that, or describe the model by hfConfig or architecture"
    )
    return Problem("spec.training.evaluation.generates", True, advice)


def _trace_has_lengths(spec: JobSpec) -> Problem | None:
    length = spec.training.target_length
    if spec.model.factory is None or length is None:
        return None
    advice = (
        "a trace of factory has the lengths of the inputs that it was made with; leave it out, or describe the model "
        "by hfConfig or architecture"
    )
    return Problem("spec.training.targetLength", length, advice)


def _trace_has_one_length(spec: JobSpec) -> Problem | None:
    if spec.model.factory is None or not spec.training.varying_lengths:
        return None
    advice = (
        "a trace of factory has one length, and does not say what others would leave reserved; leave it out, or "
        "describe the model by hfConfig or architecture"
    )
    return Problem("spec.training.varyingLengths", True, advice)


def _integration_has_template(spec: JobSpec) -> Problem | None:
    if spec.integration == "env" or spec.template is not None:
        return None
    advice = f"{spec.integration} reaches a script, and there is none; give spec.template, or leave integration out"
    return Problem("spec.integration", spec.integration, advice)


def _batch_is_divisible(spec: JobSpec) -> Problem | None:
    batch, world = spec.training.global_batch_size, spec.resources.world
    if batch % world == 0:
        return None
    below = batch - batch % world
    use = f"{below} or {below + world}" if below else str(world)
    return Problem("spec.training.globalBatchSize", batch, f"{batch} cannot be divided among {world} GPUs; use {use}")


def _micro_batch_divides(spec: JobSpec) -> Problem | None:
    sizes, batch, world = spec.tuning.space.micro_batch, spec.training.global_batch_size, spec.resources.world
    if sizes is None or any(batch % (world * size) == 0 for size in sizes):
        return None
    advice = f"none divides a GPU's share of training.globalBatchSize, which is {batch} / {counted(world, 'GPU')}"
    return Problem("spec.tuning.space.microBatch", sizes, f"{advice}; give one that does, or change the batch")


def _virtual_has_memory(spec: JobSpec) -> Problem | None:
    if spec.resources.device != "virtual" or spec.resources.gpu_memory is not None:
        return None
    advice = "device virtual has only the memory it is given; say how much, like 80Gi"
    return Problem("spec.resources.gpuMemory", None, advice)


def _emulated_has_product(spec: JobSpec) -> Problem | None:
    if spec.resources.device != "emulated" or spec.resources.gpu_product is not None:
        return None
    advice = "device emulated needs to know which GPU to emulate; name one, like h100-80gb"
    return Problem("spec.resources.gpuProduct", None, advice)


def _shrink_is_rehearsed(spec: JobSpec) -> Problem | None:
    shrink = spec.resources.shrink
    if shrink is None or spec.resources.device != "cuda":
        return None
    advice = "memory is not taken away from real GPUs; set device to virtual or emulated, or leave shrink out"
    return Problem("spec.resources.shrink", shrink, advice)


def _parallel_within_all(spec: JobSpec) -> Problem | None:
    parallel, most = spec.tuning.parallel_probes, spec.tuning.max_probes
    if parallel <= most:
        return None
    advice = f"{parallel} is more than maxProbes, which is {most}; use at most {most}"
    return Problem("spec.tuning.parallelProbes", parallel, advice)


def _slack_has_objectives(spec: JobSpec) -> Problem | None:
    if spec.tuning.slack is None or len(spec.tuning.objectives) > 1:
        return None
    advice = "it trades throughput for memory; set objectives to [throughput, memory], or leave slack out"
    return Problem("spec.tuning.slack", spec.tuning.slack, advice)


def _cost_is_speed(spec: JobSpec) -> Problem | None:
    objectives = spec.tuning.objectives
    if not {"throughput", "cost"} <= set(objectives):
        return None
    advice = "on one GPU product the fastest plan has the cheapest tokens; give throughput or cost"
    return Problem("spec.tuning.objectives", objectives, advice)


def _cost_has_products(spec: JobSpec) -> Problem | None:
    resources, is_described = spec.resources, spec.model.factory is None
    names_gpu = resources.gpu_product is not None or resources.gpu_memory is not None
    can_choose = resources.device == "cuda" and is_described and not names_gpu and spec.tuning.mode != "Fixed"
    # With throughput beside it the objectives contradict each other; that is reported first and alone.
    if not spec.tuning.chooses_product or "throughput" in spec.tuning.objectives or can_choose:
        return None
    advice = (
        "cost chooses the GPU product by what is predicted on each; use device cuda without gpuProduct and gpuMemory, "
        "describe the model by hfConfig or architecture, and leave the plan open, or take throughput"
    )
    return Problem("spec.tuning.objectives", spec.tuning.objectives, advice)


def _emulation_has_probes(spec: JobSpec) -> Problem | None:
    emulation, mode = spec.tuning.emulation, spec.tuning.mode
    if emulation == "Never" or mode == "Probe":
        return None
    advice = f"plans are emulated before they are probed, and mode {mode} probes none; leave it out"
    return Problem("spec.tuning.emulation", emulation, advice)


def _emulation_has_gpus(spec: JobSpec) -> Problem | None:
    if spec.tuning.emulation == "Never" or not spec.resources.is_emulated:
        return None
    advice = "device emulated emulates every run; leave it out"
    return Problem("spec.tuning.emulation", spec.tuning.emulation, advice)


def _hybrid_has_nodes(spec: JobSpec) -> Problem | None:
    strategies = spec.tuning.space.fsdp_strategies
    if "hybrid" not in strategies or spec.resources.nodes > 1:
        return None
    advice = "hybrid shards within a node and copies between nodes, and the job has 1 node; use full"
    return Problem("spec.tuning.space.fsdpStrategies", strategies, advice)


def _nvme_has_path(spec: JobSpec) -> Problem | None:
    is_wanted = Offload.NVME in spec.tuning.space.offload or "-onvme" in (spec.tuning.plan or "")
    if not is_wanted or spec.resources.nvme_path is not None:
        return None
    advice = "offload nvme writes to a disk; say where one is mounted in the container, like /mnt/nvme"
    return Problem("spec.resources.nvmePath", None, advice)


def _one_slice(spec: JobSpec) -> Problem | None:
    resources = spec.resources
    if "/mig-" not in resources.gpu_resource or resources.gpus_per_node == 1:
        return None
    advice = "CUDA shows a process one MIG slice only; set it to 1 and take a larger slice, or use whole GPUs"
    return Problem("spec.resources.gpusPerNode", resources.gpus_per_node, advice)


def _knob_has_engine(field: str) -> Callable[[JobSpec], Problem | None]:
    """Require the built-in trainer or integration sdk for a knob that only the engine carries out."""

    instead = "set training.attention, and leave it out" if field == "attention" else "leave it out"

    def check(spec: JobSpec) -> Problem | None:
        choices = spec.tuning.space.opened.get(field)
        if choices is None or spec.template is None or spec.integration == "sdk":
            return None
        advice = f"integration {spec.integration} leaves it to the script; {instead}, or use integration sdk"
        return Problem(f"spec.tuning.space.{field}", choices, advice)

    return check


def _knob_has_formula(field: str) -> Callable[[JobSpec], Problem | None]:
    """Refuse a knob that a trace of the model cannot show."""

    def check(spec: JobSpec) -> Problem | None:
        choices = spec.tuning.space.opened.get(field)
        if choices is None or spec.model.factory is None:
            return None
        advice = (
            "a trace of factory shows one way only; leave it out, or describe the model by hfConfig or architecture"
        )
        return Problem(f"spec.tuning.space.{field}", choices, advice)

    return check


def _optimizer_has_integration(spec: JobSpec) -> Problem | None:
    optimizers = spec.tuning.space.optimizer
    if optimizers is None or spec.template is None or spec.integration in ("sdk", "hf-trainer"):
        return None
    advice = (
        f"integration {spec.integration} leaves it to the script; set training.optimizer, and leave it out, or use "
        "integration sdk or hf-trainer"
    )
    return Problem(_OPTIMIZER_PATH, optimizers, advice)


def _optimizer_is_the_trainers(spec: JobSpec) -> Problem | None:
    optimizers = spec.tuning.space.optimizer or ()
    others = [each for each in optimizers if each not in _OF_TRAINER]
    if spec.integration != "hf-trainer" or not others:
        return None
    advice = (
        f"the Trainer has no {others[0]} with the states that are predicted; take {', '.join(_OF_TRAINER)}, or use "
        "integration sdk"
    )
    return Problem(_OPTIMIZER_PATH, optimizers, advice)


def _offload_has_backend(offload: str, backends: tuple[str, ...], needs: str) -> Callable[[JobSpec], Problem | None]:
    """Require one of ``backends`` for ``offload``; DeepSpeed shards parameters only in stage 3."""

    def check(spec: JobSpec) -> Problem | None:
        space = spec.tuning.space
        usable = {b for b in space.backends if b != "deepspeed" or offload == "optimizer" or 3 in space.zero_stages}
        if offload not in [str(choice) for choice in space.offload] or usable & set(backends):
            return None
        return Problem("spec.tuning.space.offload", offload, f"{offload} needs {needs}; add that, or take it out")

    return check


def _plan_goes_with_mode(spec: JobSpec) -> Problem | None:
    mode, plan = spec.tuning.mode, spec.tuning.plan
    if mode == "Fixed" and plan is None:
        return Problem(_PLAN_PATH, None, "mode Fixed launches a plan of yours; give it, like bf16-z2-sel-mb4x8")
    if mode != "Fixed" and plan is not None:
        advice = f"mode {mode} finds the plan itself; set tuning.mode to Fixed, or leave plan out"
        return Problem(_PLAN_PATH, plan, advice)
    return None


_PLAN_PATH = "spec.tuning.plan"
_OPTIMIZER_PATH = "spec.tuning.space.optimizer"
_OF_TRAINER = (Optimizer.ADAMW, Optimizer.ADAFACTOR, Optimizer.ADAMW_8BIT)
_NO_TRAINERS = " && ".join(f"each != '{each}'" for each in _OF_TRAINER)

_SPEC_RULES = (
    Rule(
        "spec.model",
        "spec.model",
        "(has(self.hfConfig) && !has(self.architecture) && !has(self.factory)) || "
        "(!has(self.hfConfig) && has(self.architecture) && !has(self.factory)) || "
        "(!has(self.hfConfig) && !has(self.architecture) && has(self.factory))",
        "give exactly one of hfConfig, architecture and factory",
        _one_model,
    ),
    Rule(
        "spec",
        "spec.model.factory",
        "!has(self.model.factory) || has(self.template)",
        "model.factory is a callable in the job's own image; give that image in template",
        _factory_has_image,
    ),
    Rule(
        "spec.model",
        "spec.model.factoryArguments",
        "!has(self.factoryArguments) || has(self.factory)",
        "factoryArguments are what factory is called with; give factory",
        _arguments_have_factory,
        FORBIDDEN,
    ),
    Rule(
        "spec.model",
        "spec.model.peft",
        "!has(self.factory) || !has(self.peft)",
        "a factory builds all that is trained, adapters too; leave peft out",
        _factory_is_whole,
        FORBIDDEN,
    ),
    Rule(
        "spec",
        "spec.training.evaluation.generates",
        "!has(self.model.factory) || !has(self.training.evaluation) || !self.training.evaluation.generates",
        "a trace has no KV cache; set training.evaluation.generates to false, or give hfConfig or architecture",
        _trace_has_no_cache,
    ),
    Rule(
        "spec",
        "spec.training.targetLength",
        "!has(self.model.factory) || !has(self.training.targetLength)",
        "a trace has the lengths of its inputs; leave training.targetLength out, or give hfConfig or architecture",
        _trace_has_lengths,
        FORBIDDEN,
    ),
    Rule(
        "spec",
        "spec.training.varyingLengths",
        "!has(self.model.factory) || !self.training.varyingLengths",
        "a trace has one length; leave training.varyingLengths out, or give hfConfig or architecture",
        _trace_has_one_length,
        FORBIDDEN,
    ),
    Rule(
        "spec",
        "spec.integration",
        "self.integration == 'env' || has(self.template)",
        "integration reaches a script; give template, or leave integration out",
        _integration_has_template,
    ),
    Rule(
        "spec",
        "spec.training.globalBatchSize",
        "self.resources.nodes < 1 || self.resources.gpusPerNode < 1 || "
        "(self.training.globalBatchSize % self.resources.nodes == 0 && "
        "self.training.globalBatchSize / self.resources.nodes % self.resources.gpusPerNode == 0)",
        "training.globalBatchSize must be divisible by resources.nodes x resources.gpusPerNode",
        _batch_is_divisible,
    ),
    Rule(
        "spec",
        "spec.tuning.space.microBatch",
        # The API server also evaluates this for numbers beyond their limits: avoid division by 0.
        "!has(self.tuning.space.microBatch) || self.resources.nodes < 1 || self.resources.gpusPerNode < 1 || "
        "self.tuning.space.microBatch.exists(size, size > 0 && "
        "self.training.globalBatchSize % self.resources.nodes == 0 && "
        "self.training.globalBatchSize / self.resources.nodes % self.resources.gpusPerNode == 0 && "
        "self.training.globalBatchSize / self.resources.nodes / self.resources.gpusPerNode % size == 0)",
        "tuning.space.microBatch: one of them must divide a GPU's share of training.globalBatchSize",
        _micro_batch_divides,
    ),
    Rule(
        "spec",
        "spec.tuning.space.fsdpStrategies",
        "!('hybrid' in self.tuning.space.fsdpStrategies) || self.resources.nodes > 1",
        "tuning.space.fsdpStrategies: hybrid needs more than one node",
        _hybrid_has_nodes,
    ),
    Rule(
        "spec.resources",
        "spec.resources.gpuMemory",
        "self.device != 'virtual' || has(self.gpuMemory)",
        "device virtual has only the memory it is given; set gpuMemory",
        _virtual_has_memory,
        REQUIRED,
    ),
    Rule(
        "spec.resources",
        "spec.resources.gpuProduct",
        "self.device != 'emulated' || has(self.gpuProduct)",
        "device emulated needs to know which GPU to emulate; set gpuProduct",
        _emulated_has_product,
        REQUIRED,
    ),
    Rule(
        "spec.resources",
        "spec.resources.shrink",
        "!has(self.shrink) || self.device != 'cuda'",
        "shrink takes no memory away from real GPUs; set device to virtual or emulated",
        _shrink_is_rehearsed,
        FORBIDDEN,
    ),
    Rule(
        "spec.resources",
        "spec.resources.gpusPerNode",
        "!self.gpuResource.contains('/mig-') || self.gpusPerNode == 1",
        "CUDA shows a process one MIG slice only; set gpusPerNode to 1",
        _one_slice,
    ),
    Rule(
        "spec",
        "spec.resources.nvmePath",
        "!('nvme' in self.tuning.space.offload || (has(self.tuning.plan) && self.tuning.plan.contains('-onvme'))) || "
        "has(self.resources.nvmePath)",
        "offload nvme writes to a disk; give resources.nvmePath",
        _nvme_has_path,
        REQUIRED,
    ),
    Rule(
        "spec.tuning",
        "spec.tuning.parallelProbes",
        "self.parallelProbes <= self.maxProbes",
        "parallelProbes must be at most maxProbes",
        _parallel_within_all,
    ),
    Rule(
        "spec.tuning",
        "spec.tuning.slack",
        "!has(self.slack) || ('memory' in self.objectives && "
        "('throughput' in self.objectives || 'cost' in self.objectives))",
        "slack trades throughput for memory; set objectives to both",
        _slack_has_objectives,
    ),
    Rule(
        "spec.tuning",
        "spec.tuning.objectives",
        "!('throughput' in self.objectives && 'cost' in self.objectives)",
        "on one GPU product the fastest plan has the cheapest tokens; give throughput or cost in objectives",
        _cost_is_speed,
    ),
    Rule(
        "spec",
        "spec.tuning.objectives",
        "!('cost' in self.tuning.objectives) || 'throughput' in self.tuning.objectives || "
        "(self.resources.device == 'cuda' && !has(self.resources.gpuProduct) && !has(self.resources.gpuMemory) && "
        "!has(self.model.factory) && self.tuning.mode != 'Fixed')",
        "objectives: cost chooses the GPU product by prediction; leave gpuProduct, gpuMemory, other devices, "
        "model.factory and mode Fixed out, or take throughput",
        _cost_has_products,
    ),
    Rule(
        "spec.tuning",
        "spec.tuning.emulation",
        "self.emulation == 'Never' || self.mode == 'Probe'",
        "plans are emulated before they are probed; set mode to Probe, or leave emulation out",
        _emulation_has_probes,
        FORBIDDEN,
    ),
    Rule(
        "spec",
        "spec.tuning.emulation",
        "self.tuning.emulation == 'Never' || self.resources.device != 'emulated'",
        "device emulated emulates every run; leave tuning.emulation out",
        _emulation_has_gpus,
        FORBIDDEN,
    ),
    Rule(
        "spec.tuning.space",
        "spec.tuning.space.offload",
        "!('optimizer' in self.offload) || 'deepspeed' in self.backends",
        "offload optimizer needs deepspeed in backends (fsdp offloads optimizer+parameters)",
        _offload_has_backend("optimizer", ("deepspeed",), "deepspeed in backends (fsdp offloads optimizer+parameters)"),
    ),
    Rule(
        "spec.tuning.space",
        "spec.tuning.space.offload",
        "!('optimizer+parameters' in self.offload) || 'fsdp' in self.backends || "
        "('deepspeed' in self.backends && 3 in self.zeroStages)",
        "offload optimizer+parameters needs fsdp in backends, or deepspeed with 3 in zeroStages",
        _offload_has_backend(
            "optimizer+parameters", ("deepspeed", "fsdp"), "fsdp in backends, or deepspeed with 3 in zeroStages"
        ),
    ),
    Rule(
        "spec.tuning.space",
        "spec.tuning.space.offload",
        "!('nvme' in self.offload) || ('deepspeed' in self.backends && 3 in self.zeroStages)",
        "offload nvme needs deepspeed in backends and 3 in zeroStages",
        _offload_has_backend("nvme", ("deepspeed",), "deepspeed in backends and 3 in zeroStages"),
    ),
    Rule(
        "spec",
        "spec.tuning.space.attention",
        "!has(self.tuning.space.attention) || !has(self.template) || self.integration == 'sdk'",
        "tuning.space.attention is for the built-in trainer and integration sdk; with others set training.attention",
        _knob_has_engine("attention"),
        FORBIDDEN,
    ),
    Rule(
        "spec",
        "spec.tuning.space.fusedLoss",
        "!self.tuning.space.fusedLoss.exists(each, each) || !has(self.template) || self.integration == 'sdk'",
        "tuning.space.fusedLoss is for the built-in trainer and integration sdk; with others leave it out",
        _knob_has_engine("fusedLoss"),
        FORBIDDEN,
    ),
    Rule(
        "spec",
        "spec.tuning.space.attention",
        "!has(self.model.factory) || !has(self.tuning.space.attention)",
        "a trace has one attention; leave tuning.space.attention out, or give hfConfig or architecture",
        _knob_has_formula("attention"),
        FORBIDDEN,
    ),
    Rule(
        "spec",
        "spec.tuning.space.fusedLoss",
        "!has(self.model.factory) || !self.tuning.space.fusedLoss.exists(each, each)",
        "a trace has one loss; leave tuning.space.fusedLoss out, or give hfConfig or architecture",
        _knob_has_formula("fusedLoss"),
        FORBIDDEN,
    ),
    Rule(
        "spec",
        _OPTIMIZER_PATH,
        "!has(self.tuning.space.optimizer) || !has(self.template) || self.integration == 'sdk' || "
        "self.integration == 'hf-trainer'",
        "tuning.space.optimizer is for the built-in trainer and integrations sdk and hf-trainer; with others set "
        "training.optimizer",
        _optimizer_has_integration,
        FORBIDDEN,
    ),
    Rule(
        "spec",
        _OPTIMIZER_PATH,
        "!has(self.tuning.space.optimizer) || self.integration != 'hf-trainer' || "
        f"!self.tuning.space.optimizer.exists(each, {_NO_TRAINERS})",
        f"tuning.space.optimizer: with integration hf-trainer take {', '.join(_OF_TRAINER)}, or use sdk",
        _optimizer_is_the_trainers,
    ),
    Rule(
        "spec.checkpoint.volume",
        "spec.checkpoint.volume",
        "(has(self.persistentVolumeClaim) && !has(self.nfs) && !has(self.hostPath)) || "
        "(!has(self.persistentVolumeClaim) && has(self.nfs) && !has(self.hostPath)) || "
        "(!has(self.persistentVolumeClaim) && !has(self.nfs) && has(self.hostPath))",
        "give exactly one of persistentVolumeClaim, nfs and hostPath",
        _one_volume,
    ),
    Rule(
        "spec.tuning",
        _PLAN_PATH,
        "(self.mode == 'Fixed') == has(self.plan)",
        "plan is what mode Fixed launches: give it in that mode, and in no other",
        _plan_goes_with_mode,
    ),
)
RULES = (*_SPEC_RULES, *FIXED_RULES, *ARCHITECTURE_RULES)
