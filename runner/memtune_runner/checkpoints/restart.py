"""What was saved before a training began again from step 0: it is moved out of sight, and nothing of it is deleted.

Scripts and libraries look for checkpoints by name, so that to pass over these here would not be enough.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from memtune_runner.checkpoints.store import complete_checkpoints, directories
from memtune_runner.rank.settings import Settings

# Ours, the Trainer's and accelerate's: one of these names is a checkpoint, if only a torn one.
_NAMES = re.compile(r"memtune-step-\d+-attempt-\d+(-\w+)?|checkpoint[-_]\d+(-next)?")


def set_aside(root: Path, settings: Settings) -> None:
    """Move what is of before the attempt with which the training began again, if it ever did."""
    if not settings.restarted_at:
        return
    aside = root / f".memtune-before-attempt-{settings.restarted_at}"
    for directory in list(dict.fromkeys(_of_before(root, settings))):
        target = aside / directory.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        while target.exists():
            target = target.with_name(f"{target.name}-again")
        directory.rename(target)
        print(f"memtune: the training begins again at step 0; {directory} is {target} now", file=sys.stderr)


def _of_before(root: Path, settings: Settings) -> Iterator[Path]:
    for found in complete_checkpoints(root):
        is_own = found.manifest.job_uid == settings.job_uid
        if not is_own or found.manifest.attempt < settings.restarted_at:
            yield found.directory
    if settings.attempt == settings.restarted_at:
        # Nothing of this training is there yet: what is torn is of before as well.
        yield from (path for path in directories(root) if _NAMES.fullmatch(path.name))
