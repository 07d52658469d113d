"""The built-in trainer: trains the described decoder on synthetic tokens, for rehearsals and demos.

    python -m memtune_runner.trainer --steps 100 --save-every 10

The environment holds the plan and the architecture, as for any script. Tokens depend only on the sample's number, so
the loss after a resume can be compared with that of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional

from memtune.wire.report import Phase
from memtune_runner.checkpoints.saving import current_ranks
from memtune_runner.engine import PlanError, initialize
from memtune_runner.engine.decoder import Decoder, read_architecture
from memtune_runner.rank import phases, training_length
from memtune_runner.rank.probe import DEFAULT_STEPS, MOST_SKIPPED_STEPS, has_enough
from memtune_runner.rank.settings import Settings, SettingsError, read_settings
from memtune_runner.sampler import ResumableSampler

_DATASET_LEN = 1 << 16
_BAD_INPUT = 2

Batch = dict[str, torch.Tensor]


def main(arguments: list[str] | None = None) -> int:
    """Train as the environment and the command line say. Bad arguments print one line and return 2."""
    options = _parser().parse_args(arguments)
    try:
        settings = read_settings(os.environ)
        trainer = Trainer(settings, options)
    except (SettingsError, PlanError, ValueError) as error:
        print(f"memtune: {error}", file=sys.stderr)
        return _BAD_INPUT
    trainer.probe() if settings.is_probe else trainer.train()
    return 0


class Trainer:
    """One run of the built-in trainer."""

    def __init__(self, settings: Settings, options: argparse.Namespace) -> None:
        if settings.architecture is None:
            raise SettingsError("MEMTUNE_ARCHITECTURE is not set; the built-in trainer needs a model description")
        self._settings, self._options = settings, options
        torch.manual_seed(options.seed)
        facts = read_architecture(settings.architecture)
        model = Decoder(facts, settings.plan.attention)
        self._vocabulary = facts.vocab_size
        self._engine = initialize(model, loss=_plain_loss, fused_loss=_fused_loss, lr=options.lr, settings=settings)
        self._ranks = current_ranks()

    def train(self) -> None:
        """Train from the resumed checkpoint, if any, to the last step."""
        engine, settings = self._engine, self._settings
        training_length.tell(self._options.steps * settings.global_batch // settings.world)
        if settings.resume_from is not None:
            engine.load(settings.resume_from)
            self._say(f"resumed from {settings.resume_from} after step {engine.steps}, {engine.samples} samples")
        for _ in self._steps(self._options.steps - engine.steps):
            is_last = engine.steps >= self._options.steps
            if is_last or engine.steps % self._options.save_every == 0:
                self._save()
            if self._options.evaluate_every and engine.steps % self._options.evaluate_every == 0:
                self._evaluate()

    def probe(self) -> None:
        """Run a few steps, one save that no run resumes from, and one evaluation batch, which ends the probe."""
        engine, wanted = self._engine, self._settings.probe_steps or DEFAULT_STEPS
        for _ in self._steps(wanted + MOST_SKIPPED_STEPS):
            # Skipped steps do not count. A probe may have seen enough before.
            if engine.steps - engine.skipped_steps == wanted or has_enough():
                break
        if self._settings.checkpoint_path is not None:
            self._save_for_nobody(self._settings.checkpoint_path)
        self._evaluate()

    def _save_for_nobody(self, root: Path) -> None:
        scratch = root / f".memtune-{self._settings.run or 'probe'}"
        self._engine.save(scratch)
        distributed.barrier()
        if self._ranks.rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)

    def _steps(self, count: int) -> Iterator[None]:
        engine, settings = self._engine, self._settings
        rank, world = self._ranks.rank, settings.world
        order = iter(ResumableSampler(_DATASET_LEN, self._options.seed, engine.samples, settings))
        for _ in range(count):
            # Dropout must not depend on where the run was interrupted.
            torch.manual_seed(self._options.seed + engine.steps * world + rank)
            started = time.monotonic()
            for micro in engine.micro_batches(self._batch(next(order))):
                engine.backward(engine(micro))
            step = engine.step()
            seconds = time.monotonic() - started
            self._say(f"step {engine.steps} loss {float(step.loss):.7f} samples {engine.samples} seconds {seconds:.2f}")
            yield

    def _batch(self, samples: list[int]) -> Batch:
        """Return samples that count up through the vocabulary, each from its own start and in its own stride."""
        numbers = torch.tensor(samples).unsqueeze(1)
        places = torch.arange(self._settings.sequence_length + 1)
        sequence = (numbers * 7919 + places * (1 + numbers % 7)) % self._vocabulary
        return {"tokens": sequence[:, :-1], "labels": sequence[:, 1:]}

    def _evaluate(self) -> None:
        """Compute the loss of a batch that is never trained on."""
        engine, size = self._engine, self._settings.plan.micro_batch
        samples = [_DATASET_LEN + self._ranks.rank * size + row for row in range(size)]
        micro = {name: each.to(engine.device) for name, each in self._batch(samples).items()}
        engine.model.eval()
        with phases.during(Phase.EVALUATION), torch.no_grad():
            loss = engine(micro)
        engine.model.train()
        distributed.all_reduce(loss)
        self._say(f"evaluation loss {float(loss) / self._settings.world:.7f}")

    def _save(self) -> None:
        if self._settings.checkpoint_path is None:
            return
        self._say(f"saved {self._engine.save()}")

    def _say(self, line: str) -> None:
        if self._ranks.rank == 0:
            print(line, flush=True)


def _plain_loss(model: nn.Module, micro: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(micro["tokens"]).flatten(0, 1), micro["labels"].flatten())


def _fused_loss(model: nn.Module, micro: Batch) -> torch.Tensor:
    loss: torch.Tensor = model(micro["tokens"], micro["labels"])
    return loss


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m memtune_runner.trainer", description="Trains the described decoder on synthetic tokens."
    )
    parser.add_argument("--steps", type=_positive, default=20, help="optimizer steps of the whole training (20)")
    parser.add_argument("--save-every", type=_positive, default=5, help="steps between two checkpoints (5)")
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps between two evaluations; 0 for none")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of AdamW (0.001)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the order of the data (0)")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
