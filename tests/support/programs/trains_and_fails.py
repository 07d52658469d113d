"""A Trainer's script that fails within its training, or behind it; with ``--stop`` the training ends early."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from transformers import Trainer, TrainerCallback, TrainingArguments

directory, fails, *stop = sys.argv[1:]


def upload() -> None:
    raise OSError("the upload failed")


class Steps(TrainerCallback):
    """Fails after the second step, or stops after the third."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at the number of the step."""
        if fails == "within" and state.global_step == 2:
            upload()
        control.should_training_stop |= bool(stop) and state.global_step == 3


arguments = TrainingArguments(directory, num_train_epochs=1, report_to="none", save_strategy="no")
Trainer(tiny_llama(), arguments, train_dataset=RandomTokens(64, 32), callbacks=[Steps()]).train()
upload()
