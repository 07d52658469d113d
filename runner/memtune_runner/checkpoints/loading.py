"""Whether the checkpoint that a run resumes from was loaded: nobody but the script, or its library, can do that.

It counts as loaded once a file of weights or of an optimizer was opened, by torch, a library or the script itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from memtune_runner.rank.settings import Settings

_TENSORS = (".pt", ".pth", ".bin", ".ckpt", ".distcp", ".metadata", ".safetensors", ".pkl")
# What lies beside them without a tensor in it, however large.
_OTHERS = (".json", ".jsonl", ".md", ".txt", ".jinja", ".yaml", ".yml", ".toml", ".py", ".log", ".csv")
_TOKENIZERS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_LEAST_BYTES = 4096  # of a file of any other kind: less is a note of the script's, such as its step

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
    """What this process has opened of one checkpoint. Tell it of files that Python does not open itself."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self._settings, self._directory = settings, directory
        self._prefix = f"{os.path.realpath(directory)}{os.sep}"
        self._is_watching = False
        self.is_done = False

    @classmethod
    def of(cls, settings: Settings) -> CheckpointLoad | None:
        """That of a run; None where it begins at step 0."""
        return cls(settings, settings.resume_from) if settings.resume_from is not None else None

    def watch(self) -> None:
        """Follow the files that this process opens from now on.

        Python takes no audit hook back: to the end of a run that resumes, each audited event, such as ``id()`` or an
        import, costs half a microsecond more. A wrapper of ``open`` could be taken back, but would not see
        ``os.open``, nor an ``open`` that a module has imported before.
        """
        self._is_watching = True
        sys.addaudithook(self._heard)

    def stop(self) -> None:
        """Follow them no longer; Python takes no audit hook back."""
        self._is_watching = False

    def opened(self, path: Any) -> None:
        """A file is opened to be read."""
        if self.is_done or not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.path.realpath(os.fsdecode(path))
        self.is_done = name.startswith(self._prefix) and _holds_tensors(name)

    def weights_opened(self, path: Any) -> None:
        """safetensors reads a file; what accelerate saves is more than weights, and load_state opens the rest."""
        if self._settings.integration != "accelerate":
            self.opened(path)

    @property
    def samples(self) -> int:
        """The samples that the training goes on after: none while nothing was loaded."""
        return self._settings.resume_samples if self.is_done else 0

    @property
    def missing(self) -> str:
        """What to say of a training that begins without it."""
        return self._message("the script trains without having loaded")

    @property
    def unused(self) -> str:
        """What to say of a script that ended without it, and without training."""
        return self._message("the script ended without an optimizer step and without having loaded")

    def _message(self, what: str) -> str:
        samples, remedy = self._settings.resume_samples, _REMEDIES[self._settings.integration]
        # The directory comes last, since it may be long and the message of a run is cut.
        return f"{what} the checkpoint of {samples} samples: {remedy}; it is {self._directory}"

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and self._is_watching and not self.is_done and not _writes(args):
            self.opened(args[0])


def _holds_tensors(name: str) -> bool:
    """Whether a file is one of weights or of an optimizer, as far as its name and its size show."""
    if name.endswith((*_OTHERS, *_TOKENIZERS)):
        return False
    try:
        return name.endswith(_TENSORS) or Path(name).stat().st_size >= _LEAST_BYTES
    except OSError:
        return False


def _writes(args: tuple[Any, ...]) -> bool:
    return bool((args[2] or 0) & (os.O_WRONLY | os.O_RDWR))
