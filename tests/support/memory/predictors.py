"""Predictors for tests of the formulas."""

from dataclasses import replace

from memtune.memory.constants import DEFAULT_CONSTANTS
from memtune.memory.prediction import Belief
from memtune.memory.predictor import Calibration, Predictor
from memtune.memory.workload import Workload


def of_components(workload: Workload) -> Predictor:
    """A predictor whose intervals are those of the components alone, without the width of an unmeasured job."""
    belief = Belief.prior(replace(DEFAULT_CONSTANTS, job_width=0.0))
    return Predictor(workload, Calibration(belief, None))
