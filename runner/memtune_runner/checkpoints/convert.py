"""`python -m memtune_runner convert`: makes a checkpoint fit another plan, on the CPU, beside it."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

from memtune.plans.plan import Plan
from memtune.plans.resume import Format, Way, resumable, resumption
from memtune_runner.checkpoints import manifest as manifests
from memtune_runner.checkpoints.complete_checkpoints import Checkpoint, discard
from memtune_runner.checkpoints.manifest import ManifestError
from memtune_runner.checkpoints.saving import is_complete


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert as the command line says and print the directory to resume from. Returns 0, or 2 if it cannot."""
    options = _parser().parse_args(arguments)
    try:
        source = Checkpoint(options.source, manifests.read_complete(options.source))
        # Libraries print progress to stdout, where callers look for the result.
        with redirect_stdout(sys.stderr):
            directory = converted(source, options.plan, options.world or source.manifest.world)
    except (ManifestError, ValueError) as error:
        print(f"memtune: {error}", file=sys.stderr)
        return 2
    print(directory)
    return 0


def converted(source: Checkpoint, plan: Plan, world: int) -> Path:
    """Return a directory that ``plan`` can resume from: the source's own, or a conversion beside it."""
    manifest = source.manifest
    same_world = manifest.world == world
    entry = resumption(manifest.format, manifest.plan, plan, same_world)
    if entry.way is Way.DIRECT:
        return source.directory
    if entry.way is Way.IMPOSSIBLE:
        fitting = resumable(manifest.format, manifest.plan, plan, same_world)
        advice = f"; {fitting} can resume from it" if fitting else ""
        raise ValueError(f"{source.directory} cannot be converted for {plan}: {entry.reason}{advice}")
    target = source.directory.with_name(f"{source.directory.name}-universal")
    if not is_complete(target):
        _convert_beside(source, target)
    return target


def _convert_beside(source: Checkpoint, target: Path) -> None:
    """Convert into a hidden directory, complete it and rename it, so that readers see all or nothing."""
    from memtune_runner.checkpoints import universal

    hidden = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        universal.convert(source.directory, hidden)
        manifests.sync_files(hidden)
        files = manifests.sizes(hidden)
        manifests.write(hidden, replace(source.manifest, format=Format.UNIVERSAL, files=files))
        discard(target)
        hidden.rename(target)
        manifests.sync_directory(target.parent)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m memtune_runner convert", description=__doc__)
    parser.add_argument("source", type=Path, help="directory of a complete checkpoint")
    parser.add_argument("--plan", type=Plan.parse, required=True, help="plan to resume under, like bf16-z3-full-mb1x8")
    parser.add_argument("--world", type=int, help="number of GPUs that are to resume; the checkpoint's own if left out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
