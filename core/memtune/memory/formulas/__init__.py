"""What a plan costs: peaks per phase and component with intervals, every formula, and the step time."""

from memtune.memory.formulas.terms import Term
from memtune.memory.predictor import Predictor

__all__ = ["Predictor", "Term"]
