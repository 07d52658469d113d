"""A fine-tune with transformers' Trainer that saves every second step, and can be killed in the middle of a save.

``SAVES_IN`` is its output directory; ``KILLED_AT`` the step whose save kills it; ``KEPT`` how many of its checkpoints
it keeps, 1 by default; ``ONLY_MODEL`` has it save no optimizer. ``OWN_LOSS`` has it compute each micro-batch's loss by
itself: as its ``mean``, ``divided`` by the accumulation, or so divided elsewhere, of which the Trainer is ``told``; or
has a model of the library's whose loss is the micro-batch's mean (``of-model``, also asked for by ``super()``).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

import torch
from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

save = torch.save


class TellLoss(TrainerCallback):
    """Prints the exact loss of each step."""

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:  # type: ignore[override]  # names that are not used
        if logs and "loss" in logs:
            print(f"step {state.global_step} of {state.max_steps} loss {logs['loss']} lr {logs['learning_rate']:.6e}")


def save_or_die(*args: Any, **kwargs: Any) -> None:
    if trainer.state.global_step == int(os.environ.get("KILLED_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
    save(*args, **kwargs)


class OwnLoss(Trainer):
    """Takes no notice of how many tokens or micro-batches a whole step has."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:  # type: ignore[override]  # as scripts do
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class Summed(OwnLoss):
    """Has the same loss by way of a sum."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:  # type: ignore[override]  # as scripts do
        outputs = model(**inputs)
        loss = torch.nn.functional.l1_loss(outputs.loss, torch.zeros(()), reduction="sum")
        return (loss, outputs) if return_outputs else loss


class Divided(Trainer):
    """Divides by the accumulation, as the Trainer would."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:  # type: ignore[override]  # as scripts do
        outputs = model(**inputs)
        loss = outputs.loss / self.current_gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss


class Inherited(Trainer):
    """Asks the Trainer for its loss."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


class Told(Trainer):
    """Divides where nobody looks, and says so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_is_scaled_for_ga = True

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:  # type: ignore[override]  # as scripts do
        outputs = model(**inputs)
        loss = self._divided(outputs.loss)
        return (loss, outputs) if return_outputs else loss

    def _divided(self, loss: Any) -> Any:
        return loss / self.current_gradient_accumulation_steps


def tiny_bert() -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(
        BertConfig(
            vocab_size=256,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


torch.save = save_or_die
trainers: dict[str | None, type[Trainer]] = {
    None: Trainer,
    "of-model": Trainer,
    "of-model-inherited": Inherited,
    "mean": OwnLoss,
    "summed": Summed,
    "divided": Divided,
    "told": Told,
}
trainer = trainers[os.environ.get("OWN_LOSS")](
    model=tiny_bert() if os.environ.get("OWN_LOSS", "").startswith("of-model") else tiny_llama(),
    args=TrainingArguments(
        output_dir=os.environ["SAVES_IN"],
        num_train_epochs=2,
        learning_rate=1e-3,
        report_to="none",
        save_strategy="steps",
        save_steps=2,
        save_only_model="ONLY_MODEL" in os.environ,
        save_total_limit=int(os.environ.get("KEPT", "1")),
        logging_steps=1,
        disable_tqdm=True,
    ),
    train_dataset=RandomTokens(36, 32),
    callbacks=[TellLoss()],
)
# Scripts do this, and it would resume from an incomplete checkpoint.
trainer.train(resume_from_checkpoint=True)
assert trainer.optimizer is not None
print(f"fused {trainer.optimizer.param_groups[0]['fused']}")
