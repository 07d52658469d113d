"""A probe of a script that follows its plan, on a virtual or a real GPU."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from watched import SCRIPTS, Outcome

from memtune.plans.plan import Plan
from memtune.wire.applied import mismatch
from memtune.wire.report import Device, Ending

PROBE = {"RUN_KIND": "probe", "PROBE_STEPS": "2", "SEQUENCE_LENGTH": "32"}


def followed(outcomes: list[Outcome], plan: str, device: Device = Device.VIRTUAL) -> None:
    """Every rank succeeded after its steps, and followed the plan."""
    for outcome in outcomes:
        report = outcome.report
        assert (outcome.exit_code, report.ending) == (0, Ending.SUCCEEDED), outcome.output[-3000:]
        assert mismatch(Plan.parse(plan), report.applied, len(outcomes), is_probe=True) == ""
        assert (report.steps, report.device, report.length_covered) == (2, device, True)
        assert report.memory.peak_reserved_bytes


def save_tiny_model(directory: Path) -> None:
    """A model of four layers and a tokenizer of four words for from_pretrained."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[UNK]": 0, "one": 1, "two": 2, "three": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="[UNK]")  # type: ignore[no-untyped-call]  # it has no types
    tokenizer.save_pretrained(directory)
    runpy.run_path(str(SCRIPTS / "tiny_model.py"))["tiny_llama"]().save_pretrained(directory)


def fine_tune(directory: Path) -> list[str]:
    """Return the arguments of examples/scripts/finetune.py for a LoRA of a tiny model on a text file."""
    texts = directory / "train.jsonl"
    save_tiny_model(directory / "model")
    texts.write_text('{"text": "one two three"}\n' * 32)
    return [f"--model={directory / 'model'}", f"--data={texts}", "--lora=4", f"--output={directory}"]
