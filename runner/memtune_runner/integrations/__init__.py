"""Integrations apply a plan to a script that MemTune did not write, by changing arguments where they are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from memtune.wire.frameworks import FRAMEWORKS
from memtune_runner.checkpoints import universal, whole_model
from memtune_runner.integrations import accelerate, hf_trainer, lightning
from memtune_runner.rank.bad_input import BadInputError, RefusedImportError
from memtune_runner.rank.training_length import TrainingLength

if TYPE_CHECKING:
    from memtune_runner.rank.imports import ImportWatch
    from memtune_runner.rank.patches import Patches
    from memtune_runner.rank.probe import Probe
    from memtune_runner.rank.progress import Trained
    from memtune_runner.rank.settings import Settings


def install(
    settings: Settings,
    probe: Probe | None,
    imports: ImportWatch,
    patches: Patches,
    trained: Callable[..., Trained],
    counted: Callable[[], int],
) -> TrainingLength:
    """Install the integration that the run asks for; `env` and `sdk` read the environment by themselves.

    The result knows the length of the training. ``trained`` returns how far it has come, given a library's own count of
    steps or none; ``counted`` the samples that this rank has trained in this process.
    """
    for framework in FRAMEWORKS:
        if settings.integration not in framework.integrations:
            refuse = partial(_refuse, framework.unsupported(settings.integration))
            for name in framework.modules:
                imports.before_imported(name, refuse)
    # A loop of the script's own may train a model of Keras with an optimizer of torch's.
    imports.when_imported(
        "keras.src.optimizers.base_optimizer",
        lambda module: patches.wrap(module.BaseOptimizer, "apply", _refuse_step_of_keras),
    )
    imports.when_imported(
        "fastai.optimizer", lambda module: patches.wrap(module.Optimizer, "step", _refuse_step_of_fastai)
    )
    imports.when_imported(
        "deepspeed.runtime.engine", lambda module: universal.detect_universal_checkpoints(module.DeepSpeedEngine)
    )
    if settings.integration in ("hf-trainer", "accelerate"):
        whole_model.install(settings, imports, patches)
    if settings.integration == "hf-trainer":
        return hf_trainer.install(settings, probe, imports, patches, trained)
    if settings.integration == "accelerate":
        return accelerate.install(settings, probe, imports, patches, trained)
    if settings.integration == "lightning":
        return lightning.install(settings, probe, imports, patches, trained, counted)
    return TrainingLength()


def _refuse(message: str) -> None:
    raise RefusedImportError(message)


def _refuse_step_of_fastai(*_: Any, **__: Any) -> None:
    raise BadInputError(
        "fastai steps an optimizer of its own, which MemTune does not see: give the Learner one of torch's, as in "
        "opt_func=partial(OptimWrapper, opt=torch.optim.AdamW) (docs/integrations.md)"
    )


def _refuse_step_of_keras(*_: Any, **__: Any) -> None:
    raise BadInputError(
        "Keras steps optimizers of its own, which MemTune does not see: train the model with an optimizer of torch's, "
        "in a loop instead of model.fit (docs/integrations.md)"
    )
