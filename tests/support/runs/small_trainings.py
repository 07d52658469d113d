"""Runs small trainings on virtual GPUs and reads what each rank reported; checks that a probe followed its plan."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from launches import free_port
from warm_environment import read_by_libraries
from warm_pythons import LIBRARIES, WarmPython

from memtune.plans.plan import Plan
from memtune.units import GIB
from memtune.wire.applied import mismatch
from memtune.wire.report import Device, Ending, Report, read_report
from memtune_runner.rank.ranks import Rank, report_path

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "examples" / "scripts"
WORKER = Path(__file__).parents[1] / "programs" / "watched_worker.py"
LIMIT_SECONDS = 240


class Outcome(NamedTuple):
    """What one rank came to."""

    exit_code: int
    report: Report
    output: str


@dataclass(frozen=True)
class Workers:
    """How ranks are started: by which program, and whether in Pythons that have imported nothing before.

    On a real GPU they always are; on a virtual one they are forked from a Python that has imported libraries.
    """

    program: Path = WORKER
    anew: bool = False

    def run(
        self,
        script: Path,
        plan: str,
        directory: Path,
        world: int = 1,
        arguments: Sequence[str] = (),
        **variables: str,
    ) -> list[Outcome]:
        """Run a script under a plan on ``world`` ranks to its end; ``variables`` without their prefix MEMTUNE_."""
        parsed = Plan.parse(plan)
        own = [str(ROOT / each) for each in ("core", "runner")]
        environment = {
            **os.environ,
            # Beside our own what the caller's Python has beyond its own directory, such as libraries put aside.
            "PYTHONPATH": os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "MEMTUNE_PLAN": plan,
            "MEMTUNE_MICRO_BATCH": str(parsed.micro_batch),
            "MEMTUNE_ACCUMULATION": str(parsed.accumulation),
            "MEMTUNE_RUN_KIND": "train",
            "MEMTUNE_GLOBAL_BATCH": str(parsed.global_batch(world)),
            "MEMTUNE_SEQUENCE_LENGTH": "32",
            "MEMTUNE_GPUS_PER_NODE": str(world),
            "MEMTUNE_DEVICE": "virtual",
            "MEMTUNE_GPU_MEMORY_BYTES": str(GIB),
            "MEMTUNE_RANK_DIRECTORY": str(directory),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
            **{f"MEMTUNE_{name}": value for name, value in variables.items()},
        }
        ranks = [Rank(number, number, world, world, 0) for number in range(world)]
        workers = [self._start([str(script), *arguments], environment | rank.variables()) for rank in ranks]
        try:
            outputs = [each.communicate(timeout=LIMIT_SECONDS)[0] for each in workers]
        finally:
            for each in workers:
                each.kill()
        return [
            Outcome(each.returncode or 0, _report(directory, rank, output), output)
            for each, rank, output in zip(workers, ranks, outputs, strict=True)
        ]

    def _start(self, words: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str] | WarmPython:
        words = [str(self.program), *words]
        if self.anew or environment["MEMTUNE_DEVICE"] != "virtual":
            return subprocess.Popen(
                [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        libraries = (*LIBRARIES, "lightning") if environment.get("MEMTUNE_INTEGRATION") == "lightning" else LIBRARIES
        # Libraries put aside have to be found as others are imported, which look for them.
        return WarmPython(
            words, environment, libraries, read=None if os.environ.get("PYTHONPATH") else read_by_libraries()
        )


run, run_anew = Workers().run, Workers(anew=True).run


def _report(directory: Path, rank: Rank, output: str) -> Report:
    path = report_path(directory, rank)
    assert path.exists(), f"rank {rank.rank} left no report; it wrote:\n{output[-3000:]}"
    return read_report(path.read_bytes())


PROBE = {"RUN_KIND": "probe", "PROBE_STEPS": "2", "SEQUENCE_LENGTH": "32"}


def assert_followed_plan(outcomes: list[Outcome], plan: str, device: Device = Device.VIRTUAL) -> None:
    """Every rank ended well after its steps, and did what the plan says."""
    for outcome in outcomes:
        report = outcome.report
        assert (outcome.exit_code, report.ending) == (0, Ending.SUCCEEDED), outcome.output[-3000:]
        assert mismatch(Plan.parse(plan), report.applied, len(outcomes), is_probe=True) == ""
        assert (report.steps, report.device, report.length_covered) == (2, device, True)
        assert report.memory.peak_reserved_bytes


def save_tiny_model(directory: Path) -> None:
    """A model of two layers and a tokenizer of four words, as from_pretrained takes them."""
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
    """The arguments of examples/scripts/finetune.py for a LoRA of a tiny model on a file of texts."""
    texts = directory / "train.jsonl"
    save_tiny_model(directory / "model")
    texts.write_text('{"text": "one two three"}\n' * 32)
    return [f"--model={directory / 'model'}", f"--data={texts}", "--lora=4", f"--output={directory}"]
