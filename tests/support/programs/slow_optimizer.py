"""A training whose steps take about the same time, since they mostly wait in the optimizer."""

from __future__ import annotations

import os
import runpy
import time
from typing import Any

import torch

_step = torch.optim.AdamW.step


_PERIOD_SECONDS = 1.5
_ends_at = time.monotonic()


def _slow(*args: Any, **kwargs: Any) -> Any:
    global _ends_at
    found = _step(*args, **kwargs)
    # Whatever a busy machine adds to the computation is taken from the wait.
    _ends_at = max(_ends_at + _PERIOD_SECONDS, time.monotonic())
    time.sleep(max(_ends_at - time.monotonic(), 0))
    return found


torch.optim.AdamW.step = _slow  # type: ignore[method-assign]  # for this process alone
runpy.run_path(os.environ["SLOWED_SCRIPT"], run_name="__main__")
