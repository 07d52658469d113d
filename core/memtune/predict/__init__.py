"""What a plan costs: peaks per phase and component with intervals, every formula, and the step time."""

from memtune.predict.predictor import Predictor
from memtune.predict.terms import Term

__all__ = ["Predictor", "Term"]
