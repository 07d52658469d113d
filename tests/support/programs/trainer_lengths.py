"""Trainings with transformers' Trainer whose length is an argument; each evaluates, over several ``train`` calls.

``SAVES_IN`` is the directory in which each call of ``train`` has its own, unless they share it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "scripts"))

from tiny_model import RandomTokens, tiny_llama  # type: ignore[import-not-found]  # it lies in examples/scripts
from torch.utils.data import IterableDataset
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, nargs="+", default=[2], help="of each call of train")
parser.add_argument("--drop-last", action="store_true")
parser.add_argument("--stream", action="store_true")
parser.add_argument("--ends", action="store_true", help="the stream has each row once")
parser.add_argument("--own-step", action="store_true", help="compute a step without the Trainer's")
parser.add_argument("--patience", type=int, help="of transformers' own early stopping, beside --stop-after")
parser.add_argument("--max-steps", type=int, default=-1)
parser.add_argument("--stop-after", type=int)
parser.add_argument("--share", action="store_true", help="one directory, for at most one save of each call")
parser.add_argument("--trials", type=int, default=0, help="of a search for a learning rate before each call")
parser.add_argument("--batches", action="store_true", help="a trial also chooses its batch size and accumulation")
parser.add_argument("--resume", help="what each call is told to resume from")
own = parser.parse_args()
rows = RandomTokens(21, 32)


class StopEarly(TrainerCallback):
    """Stands in for early stopping."""

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:  # type: ignore[override]  # names that are not used
        control.should_training_stop |= state.global_step == own.stop_after


class Streamed(IterableDataset[Any]):
    """A stream of rows, endless unless it ends."""

    def __iter__(self) -> Any:
        return (rows[number % len(rows)] for number in (range(len(rows)) if own.ends else itertools.count()))


class OwnStep(Trainer):
    """Makes its passes itself."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        model.train()
        loss: Any = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()


def space(trial: Any) -> dict[str, Any]:
    batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1} if own.batches else {}
    return {
        "learning_rate": trial.suggest_float("rate", 1e-5, 1e-3),
        **{name: trial.suggest_int(name, value, value) for name, value in batches.items()},
    }


for number, epochs in enumerate(own.epochs, 1):
    trainer = (OwnStep if own.own_step else Trainer)(
        model_init=tiny_llama,
        args=TrainingArguments(
            output_dir=str(Path(os.environ["SAVES_IN"]) / ("" if own.share else f"call-{number}")),
            save_total_limit=1 if own.share else None,
            num_train_epochs=epochs,
            max_steps=epochs * 3 if own.stream else own.max_steps,
            eval_strategy="steps" if own.patience else "no" if own.stream else "epoch",
            eval_steps=2,
            load_best_model_at_end=own.patience is not None,
            dataloader_drop_last=own.drop_last,
            save_steps=2,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Streamed() if own.stream else rows,
        eval_dataset=RandomTokens(7, 32),
        callbacks=[StopEarly(), *([EarlyStoppingCallback(own.patience)] if own.patience else [])],
    )
    if own.trials:
        trainer.hyperparameter_search(space, n_trials=own.trials)
    trainer.train(resume_from_checkpoint=own.resume)
    print(f"call {number} came to step {trainer.state.global_step} of {trainer.state.max_steps}", flush=True)
