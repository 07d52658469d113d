"""`Recipe`: a plan lowered to one rank's memory behaviour: bytes per parameter, shards, active mechanisms.

A `Plan` uses the user's terms, a `Recipe` the allocator's. Published measurements are described as recipes directly,
since they come from frameworks that a plan cannot name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from memtune.gpus.gpu import chip_of
from memtune.memory.formulas.terms import ALWAYS, FORWARD, LOSS, REDUCE, REDUCING
from memtune.memory.workload import Workload
from memtune.model.architecture import Architecture
from memtune.plans.knobs import (
    NO_CHECKPOINTING,
    Attention,
    Checkpointing,
    GradientDtype,
    Offload,
    Precision,
    Sharding,
)
from memtune.plans.plan import FUSED_LOSS_CHUNKS, Plan
from memtune.units import KIB, MIB

# Scales of a quantized weight: nf4 has an fp32 absmax per 64 (bitsandbytes Params4bit); double quantization stores that
# absmax in 8 bits with an fp32 per 256 of them (QLoRA, 2305.14314, section 3).
SCALE_BYTES: dict[str, float] = {"int8": 4 / 4096, "nf4": 4 / 64, "nf4-dq": 1 / 64 + 4 / (64 * 256)}
# The weight with its scales.
QUANTIZED_BYTES: dict[str, float] = {
    name: (1.0 if name == "int8" else 0.5) + scales for name, scales in SCALE_BYTES.items()
}


@dataclass(frozen=True)
class Recipe:
    """The memory facts of one rank. `backend` is none, ddp, deepspeed or fsdp.

    `base_bytes` is a quantized frozen weight with its `scale_bytes`, `frozen_bytes` one that is not quantized,
    `weight_bytes` a trainable one. `state_bytes` are the optimizer's per parameter, `outside_state_bytes` the
    additional ones outside the blocks; its step makes `foreach_bytes` for each parameter, or `alone_bytes` for each
    element of the current weight. `reduce_bytes` is an element of FSDP's gradients during the reduction.
    `keeps_gathered` units stay unsharded from their forward to their backward pass, unless DeepSpeed's are
    checkpointed. Stage 3 keeps `live_elements` gathered, two buckets if these are 0. An `older_deepspeed` is one
    before 2026, whose stages 1 and 2 flatten weights in host memory and copy offloaded master weights in fp32. One that
    `overlaps_reduction` fills a second bucket while the first is reduced. With
    `keeps_fp32_logits` a loop variable holds those of its last batch; with `drops_outputs` none but those that the
    loss saved are left when the backward pass begins. A loss that `shifts_logits` copies them for that.
    `upcasts_scores` says that an eager softmax is in fp32, `writes_softmax` that it is no function of torch's. With
    `defers_reduction` FSDP reduces with the last micro-batch only. If `counts_layers`, layers keep what is counted and
    nothing else. With `checkpoints_half` only every second layer is checkpointed. `without_autocast` an adapter that is
    wider computes in its own format. With `whole_logits` and `whole_embedding` tensor parallelism does not split them.
    Context parallelism that `gathers_keys` is torch's ring attention.
    With `builds_whole` the model is on the GPU before it is sharded. `world` counts the ranks that NCCL joins.
    `target_length` is the decoder's own if known; `source_length` is the encoder's, 0 if they are equal.
    With `mixes_units` trained and frozen weights share units of FSDP1: views of one trained tensor, so that frozen ones
    have gradients, too.
    One that `keeps_reduced` gradients has the offloaded ones on the GPU until the backward pass ends: FSDP1.
    `liger_layers` have Liger's norms, rotation and feed-forward, which keep what a compiled layer does; other kernels
    than Liger's may have `fused_norms` and a `fused_activation`, too.
    `keeps_quantized_inputs` says that products with a quantized weight keep their input. With `varying_lengths`,
    `sequence_length` is that of the longest batch. A `fused_loss` or `chunked_loss` makes its logits in `loss_chunks`
    parts, one after the other. If it `widens_head`, each part copies the head to fp32. A kernel that computes the loss
    of logits makes `loss_kernel_bytes` for each of them beside it. A loss of Liger's `loss_differentiates`: it computes
    the gradients of the head and of its input with the loss.
    """

    backend: str
    micro_batch: int
    sequence_length: int
    accumulates: bool
    weight_bytes: float
    base_bytes: float
    frozen_bytes: float
    compute_bytes: int
    gradient_bytes: float
    reduce_bytes: float
    master_bytes: float
    state_bytes: float
    outside_state_bytes: float = 0.0
    foreach_bytes: float = 0.0
    alone_bytes: float = 0.0
    scale_bytes: float = 0.0
    weight_shards: int = 1
    gradient_shards: int = 1
    state_shards: int = 1
    checkpointing: Checkpointing = NO_CHECKPOINTING
    checkpoints_half: bool = False
    attention: Attention = Attention.FLASH
    fused_loss: bool = False
    chunked_loss: bool = False
    loss_chunks: float = FUSED_LOSS_CHUNKS
    widens_head: bool = False
    loss_kernel_bytes: float | None = None
    loss_differentiates: bool = False
    upcasts_loss: bool = True
    autocasts_loss: bool = False
    returns_fp32_logits: bool = False
    shifts_logits: bool = False
    keeps_fp32_logits: bool = False
    drops_outputs: bool = False
    upcasts_scores: bool = True
    writes_softmax: bool = False
    counts_layers: bool = False
    defers_reduction: bool = False
    without_autocast: bool = False
    whole_logits: bool = False
    whole_embedding: bool = False
    context_bytes: float = 0.0
    workspace_bytes: float = 0.0
    virtual: bool = False
    compiled: bool = False
    liger_layers: bool = False
    fused_norms: bool = False
    fused_activation: bool = False
    step_in_backward: bool = False
    offloads_states: bool = False
    offloads_gradients: bool = False
    keeps_reduced: bool = False
    offloads_weights: bool = False
    offloads_activations: bool = False
    keeps_gathered: bool = False
    builds_whole: bool = False
    older_deepspeed: bool = False
    bucket_elements: int = 0
    overlaps_reduction: bool = False
    live_elements: int = 0
    bucket_phases: tuple[int, ...] = ()
    whole_fp32_gradients: bool = False
    widens_as_it_comes: bool = False
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1
    gathers_keys: bool = False
    world: int = 1
    expandable_segments: bool = False
    bucket_view: bool = True
    target_length: int = 0
    source_length: int = 0
    compiles_loss: bool = False
    keeps_quantized_inputs: bool = False
    mixes_units: bool = False
    varying_lengths: bool = False
    unknown_inputs: int = 0

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on one rank."""
        return self.micro_batch * self.sequence_length / self.context_parallel

    @property
    def source_tokens(self) -> float:
        """Tokens that the encoder reads on one rank."""
        return self.tokens * (self.source_length or self.sequence_length) / self.sequence_length

    @property
    def decoder(self) -> Recipe:
        """The decoder's recipe, with its own length if known."""
        length, source = self.target_length, self.sequence_length
        return replace(self, sequence_length=length, source_length=source, target_length=0) if length else self

    @property
    def is_alone(self) -> bool:
        """Whether the model is unwrapped, so that each gradient is a separate tensor."""
        return self.backend == "none" or (self.backend == "ddp" and self.bucket_view)

    @property
    def unknowns(self) -> int:
        """The number of unspecified inputs that memory depends on; at 8 bits or fewer also the library and its version.

        bitsandbytes' 4-bit product kept its input in some versions only (autograd/_functions.py, MatMul4Bit), and the
        caller decides which tensors keep 32-bit moments (transformers trainer.py, register_module_override).
        """
        return self.unknown_inputs + (self.base_bytes < self.frozen_bytes) + is_narrow(self.state_bytes)

    @property
    def fuses_norms(self) -> bool:
        """Whether a norm keeps its input as it is, and no normalised copy of it (Liger, ops/rms_norm.py)."""
        return self.compiled or self.liger_layers or self.fused_norms

    @property
    def fuses_activation(self) -> bool:
        """Whether a feed-forward computes its activation again in the backward pass (Liger, ops/swiglu.py)."""
        return self.compiled or self.liger_layers or self.fused_activation

    @property
    def fp32_residuals(self) -> bool:
        """Whether hidden states are fp32 between layers.

        peft's prepare_model_for_kbit_training upcasts norms and embeddings of a quantized base, and with them the
        residual stream. FSDP needs one dtype per unit, DeepSpeed casts every weight (engine.py,
        _configure_distributed_model).
        """
        is_cast = self.backend in ("fsdp", "deepspeed")
        return self.base_bytes < self.frozen_bytes > self.compute_bytes and not is_cast

    @property
    def casts_base(self) -> bool:
        """Whether autocast casts a frozen base, which was loaded in fp32, in each product that uses it.

        Like trained fp32 weights, such a base keeps hidden states in fp32 between layers.
        """
        return self.autocasts and self.base_bytes == self.frozen_bytes > self.compute_bytes

    @property
    def recomputed_layers(self) -> int:
        """The layers that are recomputed or differentiated at once."""
        return self.checkpointing.every if self.checkpointing.mode == "every" else 1

    @property
    def has_bucket(self) -> bool:
        """Whether gradients go through a bucket into the rank's partition, as in DeepSpeed's stages 1 to 3."""
        return self.bucket_phases not in ((), (REDUCE,))

    @property
    def is_stage_3(self) -> bool:
        """Whether this is DeepSpeed's stage 3, also on a single rank, which shares its weights with none."""
        return self.bucket_phases == ALWAYS

    @property
    def keeps_frozen_inputs(self) -> bool:
        """Whether products keep their inputs although their weights are frozen, as in stage 3 (zero/linear.py).

        A quantized base uses its library's products (bitsandbytes before 0.44, autograd/_functions.py, MatMul4Bit).
        """
        own = self.mixes_units or (self.is_stage_3 and not self.checkpointing.keeps_products)
        return self.keeps_quantized_inputs if self.base_bytes < self.frozen_bytes else own

    @property
    def has_flat_sums(self) -> bool:
        """Whether the step takes accumulated gradients as they are: fp32 sums at stages 1 and 2 (bf16_optimizer.py)."""
        is_wider = self.gradient_bytes > self.compute_bytes
        return self.whole_fp32_gradients or (is_wider and self.has_bucket and not self.is_stage_3)

    @property
    def reduced_bytes(self) -> int:
        """Bytes per element that DeepSpeed reduces: 4 if ranks share a sequence (engine.py, sequence parallelism)."""
        return 4 if self.context_parallel > 1 else self.compute_bytes

    @property
    def bucket_bytes(self) -> int:
        """Bytes per element of the bucket: gradients enter it as computed, as accumulated, or as they are reduced."""
        return 4 if self.widens_as_it_comes else self.reduced_bytes

    @property
    def autocasts(self) -> bool:
        """Whether autocast makes low-precision copies of the weights (FSDP casts while it gathers instead)."""
        return self.weight_bytes > self.compute_bytes and self.backend != "fsdp" and not self.without_autocast

    @property
    def widens_inputs(self) -> bool:
        """Whether each module of an adapter casts its input to the adapter's own, wider format.

        (peft tuners/tuners_utils.py, _cast_input_dtype)
        """
        return self.without_autocast and self.weight_bytes > self.compute_bytes and self.backend in ("none", "ddp")


_HOPPER = 9  # of compute capability
_FP32 = 4.0
# The fewest bits of one moment, and more than Adafactor takes.
_LEAST_NARROW_BYTES = 0.5


def sharding_ranks(workload: Workload, plan: Plan) -> int:
    """The ranks that share what the plan shards; those of one node if nodes keep replicas."""
    return workload.gpus_per_node if plan.sharding is Sharding.FSDP_HYBRID else workload.world


def attention_of(workload: Workload, plan: Plan) -> Attention:
    """The attention kernel of a job; transformers has none for some families, and torch none that caps scores.

    (sdpa_attention.py; modeling_gemma2.py and modeling_bloom.py, _supports_sdpa)
    """
    model = workload.model
    if not isinstance(model, Architecture):
        return plan.attention
    # Without a mask, transformers lets torch share heads of keys, for which CUDA has no kernel in 32 bits: it makes the
    # scores (sdpa_attention.py, use_gqa_in_sdpa; ATen/native/transformers/cuda/sdp_utils.cpp).
    is_grouped = workload.in_transformers and model.kv_heads < model.heads
    is_unfused = is_grouped and plan.compute_bytes == _FP32 and not workload.virtual
    return Attention.EAGER if is_unfused or model.makes_scores or model.attention_softcap else plan.attention


def lower(workload: Workload, plan: Plan) -> Recipe:
    """The recipe of one of our plans on each rank of a job."""
    sharding, world, compute = plan.sharding, workload.world, plan.compute_bytes
    deepspeed = sharding.backend == "deepspeed"
    weights = compute if deepspeed else 4
    shards = sharding_ranks(workload, plan)
    stage = sharding.zero_stage
    offloads = plan.offloads_states
    fp32_gradients = plan.gradient_dtype is GradientDtype.FP32
    optimizer = workload.optimizer_bytes(plan.optimizer)
    quantization = workload.adapter.base_quantization if workload.adapter else "none"
    # peft's preparation, which FSDP, DeepSpeed and our engine undo: Recipe.fp32_residuals.
    is_upcast = quantization != "none" and sharding is Sharding.DDP and not workload.casts_frozen
    return Recipe(
        backend=sharding.backend,
        micro_batch=plan.micro_batch,
        sequence_length=workload.sequence_length,
        accumulates=plan.accumulation > 1,
        weight_bytes=weights,
        base_bytes=QUANTIZED_BYTES.get(quantization, compute),
        frozen_bytes=_FP32 if is_upcast else compute,
        compute_bytes=compute,
        gradient_bytes=4 if fp32_gradients else weights,
        reduce_bytes=4 if fp32_gradients else compute,
        # From stage 1 on they step on a clone of their partition even if it is fp32 (stage_1_and_2.py; stage3.py,
        # _create_fp32_partitions, tries to avoid it but compares a device with a device name).
        master_bytes=4 if deepspeed and (compute == 2 or stage) else 0,
        state_bytes=optimizer.states,
        outside_state_bytes=optimizer.outside,
        foreach_bytes=0.0 if plan.fused_optimizer else optimizer.foreach,
        alone_bytes=optimizer.alone,
        scale_bytes=SCALE_BYTES.get(quantization, 0.0),
        weight_shards=shards if stage == 3 else 1,
        # Stage 1 reduces once per step, after the backward pass (deepspeed stage_1_and_2.py, reduce_gradients).
        gradient_shards=shards if stage >= 2 else 1,
        state_shards=shards if stage >= 1 else 1,
        checkpointing=plan.checkpointing,
        attention=attention_of(workload, plan),
        fused_loss=plan.fused_loss,
        upcasts_loss=_upcasts_loss(workload, plan),
        autocasts_loss=_autocasts_loss(workload, plan),
        upcasts_scores=_upcasts_scores(workload, plan),
        counts_layers=workload.in_transformers,
        drops_outputs=workload.drops_outputs,
        defers_reduction=workload.defers_reduction and sharding.backend == "fsdp",
        # DeepSpeed has its own mixed precision (accelerate accelerator.py, native_amp).
        keeps_fp32_logits=workload.keeps_outputs and compute == 2 and not deepspeed and not plan.fused_loss,
        workspace_bytes=workspace_bytes(workload.gpu.name),
        virtual=workload.virtual,
        compiled=workload.compiled,
        compiles_loss=_compiles_loss(workload, plan),
        target_length=workload.target_length,
        varying_lengths=workload.varying_lengths,
        offloads_states=offloads,
        # Partitioned gradients go to host memory bucket by bucket (deepspeed stage_1_and_2.py, cpu_offload).
        offloads_gradients=stage >= 2 and offloads,
        # FSDP2 offloads parameters, gradients and states together (CPUOffloadPolicy).
        offloads_weights=plan.offloads_weights,
        offloads_activations=plan.offload is Offload.ACTIVATIONS,
        keeps_gathered=sharding is Sharding.FSDP_SHARD_GRAD_OP,
        builds_whole=workload.builds_whole,
        bucket_elements=plan.bucket_elements if deepspeed else 0,
        bucket_phases=_bucket_phases(plan, world),
        whole_fp32_gradients=keeps_whole_fp32(plan),
        widens_as_it_comes=widens_as_it_comes(plan),
        world=1 if workload.fake_ranks else world,
        expandable_segments=plan.expandable_segments,
        bucket_view=sharding is not Sharding.DDP or workload.without_reducer,
    )


def workspace_bytes(gpu: str) -> float:
    """cuBLAS workspaces on a GPU whose chip is known, else 0. The backward pass has its own workspace.

    PyTorch, CublasHandlePool.cpp, parseChosenWorkspaceSize; emulated runs of an H100, a B200, an RTX 5090, an A100 and
    a T4. Up to torch 2.11 a B200 counts as a GPU before Hopper.
    """
    try:
        chip = chip_of(gpu)
    except KeyError:
        return 0.0
    return 2 * (32 * MIB if chip.major >= _HOPPER else 8 * MIB + 128 * KIB)


def _compiles_loss(workload: Workload, plan: Plan) -> bool:
    """FSDP's blocks are compiled one by one, and the loss stays eager unless the job says otherwise."""
    if workload.compiles_loss is not None:
        return workload.compiles_loss
    return workload.compiled and plan.sharding.backend != "fsdp"


def _upcasts_loss(workload: Workload, plan: Plan) -> bool:
    """Whether the loss uses fp32 logits: through the model's own code, or through autocast, always so with DDP."""
    model = workload.model
    return _has_autocast(workload, plan) or not isinstance(model, Architecture) or model.upcasts_loss


def _autocasts_loss(workload: Workload, plan: Plan) -> bool:
    """Whether autocast widens logits that the model's own loss would take as they are."""
    model, is_half = workload.model, plan.compute_bytes < _FP32
    return is_half and _has_autocast(workload, plan) and isinstance(model, Architecture) and not model.upcasts_loss


def _upcasts_scores(workload: Workload, plan: Plan) -> bool:
    """Whether an eager softmax is in fp32, through the model's own code or through autocast."""
    model = workload.model
    return _has_autocast(workload, plan) or not isinstance(model, Architecture) or model.upcasts_scores


def _has_autocast(workload: Workload, plan: Plan) -> bool:
    return plan.sharding is Sharding.DDP or not workload.without_autocast


def keeps_whole_fp32(plan: Plan) -> bool:
    """Whether DeepSpeed takes its BF16_Optimizer for stage 1 (engine.py, _do_optimizer_sanity_check)."""
    return _widens_at_stage_1(plan) and plan.precision is not Precision.FP16 and not plan.offloads_states


def widens_as_it_comes(plan: Plan) -> bool:
    """Whether stage 1 widens each gradient when it is ready (stage_1_and_2.py, use_grad_accum_attribute)."""
    return _widens_at_stage_1(plan) and not keeps_whole_fp32(plan)


def _widens_at_stage_1(plan: Plan) -> bool:
    is_wider = plan.gradient_dtype is GradientDtype.FP32 and plan.compute_bytes == 2
    return plan.sharding.zero_stage == 1 and is_wider


def _bucket_phases(plan: Plan, world: int) -> tuple[int, ...]:
    """The phases in which DeepSpeed has its single reduce bucket: `deepspeed_config` overlaps only at stage 3."""
    stage = plan.sharding.zero_stage
    if plan.sharding.backend != "deepspeed" or (stage == 0 and world == 1):
        return ()
    if stage == 3:
        # Allocated when the engine starts (stage3.py, contiguous_gradients).
        return ALWAYS
    if stage == 0 or keeps_whole_fp32(plan):
        return (REDUCE,)
    # Allocated by the first gradient, released with the backward pass that reduces (stage_1_and_2.py,
    # _release_ipg_buffers): at stage 1 the last one of a step.
    return (FORWARD, LOSS, *REDUCING) if stage == 1 and plan.accumulation > 1 else REDUCING


def is_narrow(state_bytes: float) -> bool:
    """Whether these are states of 8 bits or fewer, which come with scales."""
    return state_bytes >= _LEAST_NARROW_BYTES and state_bytes % 1 > 0
