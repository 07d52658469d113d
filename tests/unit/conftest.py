"""How this stage runs: property tests see the same examples each time, without a clock and without files."""

import gc

from hypothesis import settings
from hypothesis.internal.conjecture import providers
from isolation import _kept_apart, _no_breach  # noqa: F401  # fixtures, found by their names

# A deadline measures the machine, not the code. Tests whose space is wide ask for more examples themselves.
settings.register_profile("unit", deadline=None, max_examples=20, derandomize=True, database=None)
settings.load_profile("unit")
# Most of what is made stays to the end of these few seconds: looking through it every 700 objects took a fifth of them.
gc.set_threshold(100_000)
# It would read every module of the project for constants to draw, which takes seconds on a fresh clone and makes other
# examples after every edit of any of them.
providers._get_local_constants = lambda: providers._local_constants


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: no later search for garbage need look at it."""
    gc.freeze()
