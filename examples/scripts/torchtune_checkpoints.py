"""A checkpointer for torchtune's recipes, whose checkpoints a relaunch finds: each epoch has a directory of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torchtune.training import FullModelHFCheckpointer

from memtune_runner import checkpoint_saved


class Resumable(FullModelHFCheckpointer):
    """``resume_from_checkpoint`` is the directory to resume from; empty for a fresh start."""

    def __init__(
        self, *, output_dir: str, samples_per_epoch: int, should_load_recipe_state: str, **kwargs: Any
    ) -> None:
        resume = should_load_recipe_state
        if resume:
            saved = Path(resume).glob("epoch_*/model-*.safetensors")
            kwargs["checkpoint_files"] = [str(file.relative_to(resume)) for file in saved]
        super().__init__(output_dir=resume or output_dir, should_load_recipe_state=bool(resume), **kwargs)
        self._saves, self._samples_per_epoch = Path(output_dir), samples_per_epoch

    def save_checkpoint(
        self, state_dict: dict[str, Any], epoch: int, intermediate_checkpoint: bool = False, **kwargs: Any
    ) -> None:
        self._output_dir = self._saves / f"{os.environ['MEMTUNE_RUN']}-epoch-{epoch}"
        super().save_checkpoint(state_dict, epoch, intermediate_checkpoint, **kwargs)
        if intermediate_checkpoint:  # the last has no optimizer
            checkpoint_saved(self._output_dir, samples=(epoch + 1) * self._samples_per_epoch)
