"""The formulas: a plan lowered to a recipe, its addends, and the phase that peaks."""
