"""Hooks in torch and DeepSpeed that report what a script does to its watch, at a few microseconds per batch.

No hook is attached to single modules, because a model may be wrapped, compiled or replaced at any time. Only the
outermost module call matters; detecting it costs every other call one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from memtune.wire.report import Phase
from memtune_runner.checkpoints import save_barrier
from memtune_runner.rank import phases
from memtune_runner.rank.patches import Patches

if TYPE_CHECKING:
    from memtune_runner.checkpoints.loading import CheckpointLoad
    from memtune_runner.watch.watch import Watch

Inherited = Callable[..., Any]


def hook_torch(watch: Watch, patches: Patches) -> None:
    """Hook forward and backward passes, optimizer steps, and saves."""
    patches.wrap(torch.nn.Module, "__call__", _module_call(watch))
    patches.wrap(torch.autograd, "backward", _backward(watch))
    patches.wrap(torch.autograd, "grad", _grad(watch))
    patches.wrap(torch.amp.GradScaler, "step", _scaler_step(watch))
    patches.wrap(torch, "save", _saving)
    patches.wrap(torch.optim.lr_scheduler.LRScheduler, "__init__", _schedule_made(watch))
    patches.wrap(torch.optim.lr_scheduler.LRScheduler, "step", _schedule_stepped(watch))
    before = register_optimizer_step_pre_hook(lambda optimizer, _, __: watch.optimizer_began(optimizer))
    after = register_optimizer_step_post_hook(lambda optimizer, _, __: watch.optimizer_ended(optimizer))
    patches.when_undone(before.remove)
    patches.when_undone(after.remove)


def hook_checkpointing(module: ModuleType, watch: Watch, patches: Patches) -> None:
    """Hook blocks that run under ``torch.utils.checkpoint`` or DeepSpeed's activation checkpointing."""

    def entered(inherited: Inherited, *args: Any, **kwargs: Any) -> Any:
        watch.block_checkpointed()
        return inherited(*args, **kwargs)

    # Every entry point creates one of these two per block. The functions in between differ between torch releases, and
    # a script or library may have imported one before it could be wrapped.
    for name, method in (("_CheckpointFrame", "__init__"), ("CheckpointFunction", "forward")):
        if hasattr(module, name):  # DeepSpeed's module has no frames
            patches.wrap(getattr(module, name), method, entered)


def hook_distributed_checkpoints(module: ModuleType, patches: Patches) -> None:
    """Hook saves through ``torch.distributed.checkpoint``."""
    patches.wrap(module, "save", _saving)


def hook_left_groups(patches: Patches) -> None:
    """Keep groups of gloo that the script leaves with its last ones, until it makes the next.

    Releasing the last reference waits for the group's threads, and these need the GIL to free a collective's Python
    objects. DDP's reducer, whose deallocation does not release the GIL, would wait forever.
    """
    left: list[Any] = []

    def init(inherited: Inherited, *args: Any, **kwargs: Any) -> Any:
        left.clear()
        return inherited(*args, **kwargs)

    def destroy(inherited: Inherited, group: Any = None) -> Any:
        if group in (None, torch.distributed.group.WORLD):
            groups = torch.distributed.distributed_c10d._world.pg_map
            left.extend(each for each in groups if "gloo" in torch.distributed.get_backend_config(each))
        return inherited(group)

    patches.wrap(torch.distributed, "init_process_group", init)
    patches.wrap(torch.distributed, "destroy_process_group", destroy)


def hook_process_group(patches: Patches) -> None:
    """Notice that this rank leaves the others, who may wait for it in a save, or waits for them elsewhere."""

    def destroy(inherited: Inherited, group: Any = None) -> Any:
        if group in (None, torch.distributed.group.WORLD):
            save_barrier.announce_end()
        return inherited(group)

    def barrier(inherited: Inherited, group: Any = None, *args: Any, **kwargs: Any) -> Any:
        if group not in (None, torch.distributed.group.WORLD):
            return inherited(group, *args, **kwargs)
        with save_barrier.in_barrier():
            return inherited(group, *args, **kwargs)

    patches.wrap(torch.distributed, "destroy_process_group", destroy)
    patches.wrap(torch.distributed, "barrier", barrier)


def hook_safetensors(module: ModuleType, patches: Patches) -> None:
    """Hook saves through safetensors, such as ``save_pretrained``."""
    patches.wrap(module, "save_file", _saving)


def hook_safetensors_reading(module: ModuleType, load: CheckpointLoad, patches: Patches) -> None:
    """Hook reads through safetensors, which opens files without Python."""

    def safe_open(inherited: Inherited, filename: Any, *args: Any, **kwargs: Any) -> Any:
        load.weights_opened(filename)
        return inherited(filename, *args, **kwargs)

    patches.wrap(module, "safe_open", safe_open)


def hook_deepspeed(module: ModuleType, watch: Watch, patches: Patches) -> None:
    """Hook the steps of DeepSpeed's engine, since its optimizers call each other's ``step`` within one."""

    def step(inherited: Inherited, engine: Any, *args: Any, **kwargs: Any) -> Any:
        steps, skipped = engine.global_steps, engine.skipped_steps
        watch.engine_began()
        result = inherited(engine, *args, **kwargs)
        watch.engine_ended(engine.global_steps - steps, engine.skipped_steps - skipped)
        return result

    patches.wrap(module.DeepSpeedEngine, "step", step)
    patches.wrap(module.DeepSpeedEngine, "save_checkpoint", _saving)


def _module_call(watch: Watch) -> Inherited:
    def call(inherited: Inherited, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return inherited(module, *args, **kwargs)
        if watch.busy:
            if watch.applied_plan.looks_for_compute_dtype:
                watch.applied_plan.inner_forward_began(module)
            return inherited(module, *args, **kwargs)
        if not watch.forward_began(module, args, kwargs):
            return inherited(module, *args, **kwargs)
        try:
            output = inherited(module, *args, **kwargs)
        finally:
            watch.forward_left()
        watch.forward_ended()
        return output

    return call


def _backward(watch: Watch) -> Inherited:
    def backward(inherited: Inherited, *args: Any, **kwargs: Any) -> Any:
        if watch.busy or _is_on_meta(*args[:1], *kwargs.values()):
            return inherited(*args, **kwargs)  # recomputation within a backward pass, or nothing of the training
        watch.backward_began()
        watch.out_of_memories.pass_began()
        try:
            result = inherited(*args, **kwargs)
        finally:
            watch.busy = False
        watch.out_of_memories.pass_ended()
        return result

    return backward


def _is_on_meta(*given: Any) -> bool:
    """Whether the first of the tensors is on the device meta."""
    tensors = given[0] if given else None
    first = next(iter(tensors), None) if isinstance(tensors, (list, tuple)) else tensors
    return isinstance(first, torch.Tensor) and first.is_meta


def _grad(watch: Watch) -> Inherited:
    def grad(inherited: Inherited, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.busy or torch.compiler.is_compiling():
            return inherited(outputs, inputs, *args, **kwargs)
        if isinstance(inputs, Iterator):
            inputs = tuple(inputs)  # as torch does; an iterator can be read only once
        if _are_weights(inputs) and not _creates_graph(args, kwargs):
            watch.gradients_asked_for()
        watch.busy = True
        watch.out_of_memories.pass_began()
        try:
            result = inherited(outputs, inputs, *args, **kwargs)
        finally:
            watch.busy = False
        watch.out_of_memories.pass_ended()
        return result

    return grad


def _are_weights(inputs: Any) -> bool:
    """Whether gradients of weights are requested, alone or among others."""
    if isinstance(inputs, torch.Tensor):
        return isinstance(inputs, torch.nn.Parameter)
    given = inputs.values() if isinstance(inputs, Mapping) else inputs
    return any(isinstance(each, torch.nn.Parameter) for each in given)


def _creates_graph(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the gradients become part of a loss, as in a gradient penalty, so that another backward pass follows."""
    position = 2  # behind the inputs
    return bool(kwargs.get("create_graph", args[position] if len(args) > position else False))


def _scaler_step(watch: Watch) -> Inherited:
    def step(inherited: Inherited, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not scaler.is_enabled():
            return inherited(scaler, optimizer, *args, **kwargs)
        watch.engine_began()
        result = inherited(scaler, optimizer, *args, **kwargs)
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
        watch.scaler_ended(optimizer, skipped=any(bool(each.item()) for each in found))
        return result

    return step


def _schedule_made(watch: Watch) -> Inherited:
    def made(inherited: Inherited, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        watch.schedule_length.made(getattr(scheduler, "lr_lambdas", None))  # a LambdaLR has them before its base class
        inherited(scheduler, *args, **kwargs)

    return made


def _schedule_stepped(watch: Watch) -> Inherited:
    def stepped(inherited: Inherited, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        result = inherited(scheduler, *args, **kwargs)
        watch.schedule_length.stepped()
        return result

    return stepped


def _saving(inherited: Inherited, *args: Any, **kwargs: Any) -> Any:
    with phases.during(Phase.SAVE):
        return inherited(*args, **kwargs)
