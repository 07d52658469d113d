"""A training whose steps take about the same time, since they mostly wait in the optimizer."""

from __future__ import annotations

import os
import runpy
import time
from typing import Any

import torch

_step = torch.optim.AdamW.step


def _slow(*args: Any, **kwargs: Any) -> Any:
    time.sleep(0.5)
    return _step(*args, **kwargs)


torch.optim.AdamW.step = _slow  # type: ignore[method-assign]  # for this process alone
runpy.run_path(os.environ["SLOWED_SCRIPT"], run_name="__main__")
