"""Detects whether the script, or its library, loaded the checkpoint that the run resumes from.

It counts as loaded once torch, a library or the script opened a file of weights or optimizer states.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from memtune_runner.rank.settings import Settings

_TENSORS = (".pt", ".pth", ".bin", ".ckpt", ".distcp", ".metadata", ".safetensors", ".pkl")
# Files beside them that hold no tensors, however large.
_OTHERS = (".json", ".jsonl", ".md", ".txt", ".jinja", ".yaml", ".yml", ".toml", ".py", ".log", ".csv")
_TOKENIZERS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_LEAST_BYTES = 4096  # smaller files of other types are notes of the script, such as its step

_REMEDIES = {
    "env": "load it from $MEMTUNE_RESUME_FROM before the training",
    "hf-trainer": "let trainer.train() make the training, which resumes by itself",
    "accelerate": (
        "call accelerator.load_state(path) before the training, with $MEMTUNE_RESUME_FROM or, in a script that takes "
        "it as an argument, --resume_from_checkpoint=$(MEMTUNE_RESUME_FROM)"
    ),
    "lightning": (
        "let trainer.fit(...) make the training, which resumes by itself, or call fabric.load(path, state) with "
        "$MEMTUNE_RESUME_FROM before it"
    ),
    "sdk": 'call engine.load(os.environ["MEMTUNE_RESUME_FROM"]) before the training',
}


class CheckpointLoad:
    """The files of one checkpoint that this process opened. Report files that Python does not open itself with
    ``opened``.
    """

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._settings, self._directory = settings, directory
        self._prefix = f"{os.path.realpath(directory)}{os.sep}"
        self._is_watching = False
        self.is_done = False

    @classmethod
    def of(cls, settings: Settings) -> CheckpointLoad | None:
        """Return that of a run; None if it starts at step 0."""
        return cls(settings, settings.resume_from) if settings.resume_from is not None else None

    def watch(self) -> None:
        """Follow the files that this process opens from now on.

        Audit hooks cannot be removed: until a resumed run ends, each audited event, such as ``id()`` or an import,
        costs half a microsecond more. A wrapper of ``open`` could be removed but would miss ``os.open`` and any
        ``open`` that a module imported before.
        """
        self._is_watching = True
        sys.addaudithook(self._heard)

    def stop(self) -> None:
        """Stop following; the audit hook itself cannot be removed."""
        self._is_watching = False

    def opened(self, path: Any) -> None:
        """Record that a file was opened for reading."""
        if self.is_done or not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.path.realpath(os.fsdecode(path))
        self.is_done = name.startswith(self._prefix) and _holds_tensors(name)

    def weights_opened(self, path: Any) -> None:
        """Record a read by safetensors; a state saved by accelerate has more files, which load_state opens."""
        if self._settings.integration != "accelerate":
            self.opened(path)

    @property
    def samples(self) -> int:
        """The samples that the training continues after: 0 until something was loaded."""
        return self._settings.resume_samples if self.is_done else 0

    @property
    def missing(self) -> str:
        """The message for a training that starts without loading."""
        return self._message("the script trains without having loaded")

    @property
    def unused(self) -> str:
        """The message for a script that ended without loading and without training."""
        return self._message("the script ended without an optimizer step and without having loaded")

    def _message(self, what: str) -> str:
        samples, remedy = self._settings.resume_samples, _REMEDIES[self._settings.integration]
        # The directory comes last: it may be long, and messages are cut.
        return f"{what} the checkpoint of {samples} samples: {remedy}; it is {self._directory}"

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and self._is_watching and not self.is_done and not _writes(args):
            self.opened(args[0])


def _holds_tensors(name: str) -> bool:
    """Whether a file holds weights or optimizer states, judging by its name and size."""
    if name.endswith((*_OTHERS, *_TOKENIZERS)):
        return False
    try:
        return name.endswith(_TENSORS) or Path(name).stat().st_size >= _LEAST_BYTES
    except OSError:
        return False


def _writes(args: tuple[Any, ...]) -> bool:
    return bool((args[2] or 0) & (os.O_WRONLY | os.O_RDWR))
