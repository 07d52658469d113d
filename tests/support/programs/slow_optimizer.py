"""A training whose steps take about the same time, since they mostly wait in the optimizer."""

import os
import runpy
import time

import torch

_step = torch.optim.AdamW.step


def _slow(*args, **kwargs):
    time.sleep(0.5)
    return _step(*args, **kwargs)


torch.optim.AdamW.step = _slow
runpy.run_path(os.environ["SLOWED_SCRIPT"], run_name="__main__")
