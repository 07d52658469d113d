"""The ways a plan reaches a script that MemTune did not write. Each changes arguments where they are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from memtune.frameworks import FRAMEWORKS
from memtune_runner.bad_input import RefusedImportError
from memtune_runner.checkpoints import universal
from memtune_runner.integrations import accelerate, hf_trainer, lightning

if TYPE_CHECKING:
    from memtune_runner.probe import Probe
    from memtune_runner.settings import Settings
    from memtune_runner.watch.imports import ImportWatch
    from memtune_runner.watch.patches import Patches


def install(
    settings: Settings, probe: Probe | None, imports: ImportWatch, patches: Patches, samples: Callable[[], int]
) -> Callable[[], str]:
    """Prepare the integration that the run asks for; `env` and `sdk` read the environment by themselves.

    What is returned tells why a script that ended well has not trained as long as it meant to, or nothing.
    ``samples`` tells how many are behind the weights of this process, over all ranks.
    """
    for framework in FRAMEWORKS:
        if settings.integration not in framework.integrations:
            refuse = partial(_refuse, framework.refusal(settings.integration))
            for name in framework.modules:
                imports.before_imported(name, refuse)
    imports.when_imported("deepspeed.runtime.engine", lambda module: universal.read_by_its_kind(module.DeepSpeedEngine))
    if settings.integration == "hf-trainer":
        hf_trainer.install(settings, probe, imports, patches)
    elif settings.integration == "accelerate":
        return accelerate.install(settings, probe, imports, patches, samples)
    elif settings.integration == "lightning":
        lightning.install(settings, probe, imports, patches, samples)
    return str


def _refuse(message: str) -> None:
    raise RefusedImportError(message)
