"""Applies a plan to Lightning's Fabric: arguments, micro-batches and checkpoints. The loop is the script's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtune.plans.plan import Plan
from memtune.wire.report import Phase
from memtune_runner.checkpoints import lightning, manifest
from memtune_runner.integrations.lightning import strategies
from memtune_runner.integrations.loaders import batch_size_of, in_micro_batches, is_in_order, training_loader
from memtune_runner.rank import phases, progress, script_warnings
from memtune_runner.rank.bad_input import BadInputError
from memtune_runner.rank.training_length import TrainingLength

if TYPE_CHECKING:
    from memtune_runner.rank.imports import ImportWatch
    from memtune_runner.rank.patches import Patches
    from memtune_runner.rank.probe import Probe
    from memtune_runner.rank.progress import Trained
    from memtune_runner.rank.settings import Settings

Inherited = Callable[..., Any]


def install(
    package: str,
    settings: Settings,
    probe: Probe | None,
    imports: ImportWatch,
    patches: Patches,
    trained: Callable[[], Trained],
    length: TrainingLength,
) -> None:
    """Wrap the Fabric of one of the two packages."""

    def wrap_fabric(module: Any) -> None:
        state = _State()
        if probe is not None:
            probe.at_the_end(state.save_once)
        patches.wrap(module.Fabric, "__init__", _init(settings, package))
        patches.wrap(module.Fabric, "setup", _setup(settings, state))
        patches.wrap(module.Fabric, "setup_module", _setup(settings, state))
        patches.wrap(module.Fabric, "setup_optimizers", state.setup_optimizers)
        patches.wrap(module.Fabric, "setup_dataloaders", _setup_dataloaders(settings, length))
        patches.wrap(module.Fabric, "save", lightning.save_aside if probe is not None else _save(settings, trained))
        patches.wrap(module.Fabric, "load", _load(settings))

    imports.when_imported(f"{package}.fabric", wrap_fabric)


class _State:
    """The objects that the script has set up, which a probe saves once unless the script did."""

    def __init__(self) -> None:
        self._fabric: Any = None
        self._parts: dict[str, Any] = {}

    def keep(self, fabric: Any, made: Any) -> None:
        """Remember a model, optimizers, or both."""
        self._fabric = fabric
        parts = made if isinstance(made, tuple) else (made,)
        self._parts |= {f"part{len(self._parts) + number}": each for number, each in enumerate(parts)}

    def setup_optimizers(self, inherited: Inherited, fabric: Any, *optimizers: Any) -> Any:
        """The wrapper of ``Fabric.setup_optimizers``."""
        made = inherited(fabric, *optimizers)
        self.keep(fabric, made)
        return made

    def save_once(self) -> None:
        """Save at the end of a probe."""
        if self._fabric is not None and not phases.times_ended(Phase.SAVE):
            self._fabric.save("probe.ckpt", self._parts)


def _init(settings: Settings, package: str) -> Inherited:
    def init(inherited: Inherited, fabric: Any, *args: Any, **kwargs: Any) -> None:
        if settings.plan.sharding.backend == "deepspeed":
            raise BadInputError(
                f"plan {settings.plan} is DeepSpeed's, which accumulates by itself, and under Fabric the script's loop "
                "does that; leave only ddp and fsdp in tuning.space.backends"
            )
        strategies.use_tf32(settings.plan)
        given = inspect.signature(inherited).bind(fabric, *args, **kwargs)
        given.arguments.update(strategies.overrides(settings, package, given.arguments))
        inherited(*given.args, **given.kwargs)

    return init


def _setup(settings: Settings, state: _State) -> Inherited:
    def setup(inherited: Inherited, fabric: Any, module: Any, *optimizers: Any, **kwargs: Any) -> Any:
        from memtune_runner.engine.activation_checkpointing import set_checkpointing

        if optimizers and settings.plan.sharding.backend == "fsdp":
            raise BadInputError(
                f"plan {settings.plan} shards the weights before an optimizer can be made of them: let the script call "
                "model = fabric.setup(model), make the optimizer of that model's parameters, and call "
                "optimizer = fabric.setup_optimizers(optimizer)"
            )
        is_trained = any(each.requires_grad for each in module.parameters())
        if is_trained:
            set_checkpointing(module, settings.plan.checkpointing)
        made = inherited(fabric, module, *optimizers, **kwargs)
        if is_trained:
            state.keep(fabric, made)
        return made

    return setup


def _setup_dataloaders(settings: Settings, length: TrainingLength) -> Inherited:
    def setup_dataloaders(inherited: Inherited, fabric: Any, *loaders: Any, **kwargs: Any) -> Any:
        made = inherited(fabric, *loaders, **kwargs)
        all_made = made if len(loaders) > 1 else [made]
        trained = training_loader(list(loaders))
        size = batch_size_of(trained) if trained is not None else None
        # Under accumulation, the loop uses the plan's numbers. Loaders set up later are for evaluation.
        if size and settings.plan.accumulation == 1 and length.own_batch is None:
            length.own_batch = size * settings.world
        changed = [
            _in_micro_batches(each, settings) if asked is trained else _in_evaluation_batches(each, settings)
            for asked, each in zip(loaders, all_made, strict=True)
        ]
        return changed if len(loaders) > 1 else changed[0]

    return setup_dataloaders


def _in_micro_batches(loader: Any, settings: Settings) -> Any:
    pad_to = settings.sequence_length if settings.is_probe else None
    return _with(loader, in_micro_batches(loader._dataloader, settings.plan.micro_batch, pad_to))


def _in_evaluation_batches(loader: Any, settings: Settings) -> Any:
    """Shrink the batches of an ordered loader below those in which an evaluation ran out of memory."""
    size = batch_size_of(loader._dataloader)
    if settings.evaluation_batch is None or size is None or not is_in_order(loader._dataloader):
        return loader
    return _with(loader, in_micro_batches(loader._dataloader, min(size, settings.evaluation_batch), None))


def _with(loader: Any, inner: Any) -> Any:
    """Return Fabric's wrapper around another loader."""
    return type(loader)(inner, device=loader.device)


def _save(settings: Settings, trained: Callable[[], Trained]) -> Inherited:
    def save(inherited: Inherited, fabric: Any, path: Any, state: Any, *args: Any, **kwargs: Any) -> None:
        with phases.during(Phase.SAVE):
            inherited(fabric, path, state, *args, **kwargs)
        if _is_resumable(state):
            # Only the first rank may know of the resume: it may have read the checkpoint for all.
            done = fabric.broadcast(trained())
            lightning.keep(settings, lambda directory: inherited(fabric, directory, state), done)

    return save


def _is_resumable(state: dict[str, Any]) -> bool:
    """Whether a state has an optimizer. Weights alone are a result, or what a training begins with."""
    from torch.optim import Optimizer

    return any(isinstance(each, Optimizer) for each in state.values())


def _load(settings: Settings) -> Inherited:
    """Return the wrapper of ``Fabric.load``: a training loads the resolved checkpoint instead of the script's own."""

    def load(inherited: Inherited, fabric: Any, path: Any, state: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Each rank knows its own steps; how far the training is, only those that have read the checkpoint.
        resumes = bool(state) and _is_resumable(state) and not progress.now().steps
        if settings.resume_from is None and resumes and not settings.is_probe:
            script_warnings.warn(
                "the script went on from a file that is no checkpoint of MemTune's, so the samples before it are not "
                f"counted; remove it to begin at step 0: {path}",
                once="unknown state",
            )
        if settings.resume_from is None or not (resumes or Path(path) == settings.resume_from):
            return inherited(fabric, path, state, *args, **kwargs)
        result = inherited(fabric, lightning.resume_from(settings, path), state, *args, **kwargs)
        if state is not None:
            recount(state, manifest.read_complete(settings.resume_from).plan, settings.plan)
        return result

    return load


def recount(state: dict[str, Any], saved: Plan, wanted: Plan) -> None:
    """Convert the batches that LitGPT's loops count beside their optimizer steps, to skip them in a resume.

    Another script may count something else under these names.
    """
    modules = getattr(state.get("model"), "modules", tuple)
    steps = state.get("step_count")
    is_of_litgpt = any(type(each).__module__.startswith("litgpt.") for each in modules())
    if is_of_litgpt and isinstance(steps, int) and state.get("iter_num") == steps * saved.accumulation:
        state["iter_num"] = steps * wanted.accumulation
