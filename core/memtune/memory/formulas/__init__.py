"""Memory formulas: a plan lowered to a recipe, its terms, and the phase that peaks."""
