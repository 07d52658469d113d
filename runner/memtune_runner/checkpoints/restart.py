"""Moves checkpoints aside when a training starts again from step 0; deletes none of them.

Scripts and libraries find checkpoints by name, so skipping them here would not be enough.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from memtune_runner.checkpoints.complete_checkpoints import complete_checkpoints, directories
from memtune_runner.rank.settings import Settings

# MemTune's, the Trainer's, accelerate's and LitGPT's names: directories with them are checkpoints, complete or not.
_NAMES = re.compile(r"memtune-step-\d+-attempt-\d+(-\w+)?|checkpoint[-_]\d+(-next)?|step-\d{6}")


def set_aside(root: Path, settings: Settings) -> None:
    """Move aside what earlier attempts wrote than the one that started the training again, if any."""
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
        # This training has saved nothing yet, so incomplete checkpoints are old as well.
        yield from (path for path in directories(root) if _NAMES.fullmatch(path.name))
